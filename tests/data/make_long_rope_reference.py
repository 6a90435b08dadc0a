"""Makes the stored reference of scaled rotary embeddings: transformers in float32 on the CPU.

    pip install -e '.[parity]' && python -m tests.data.make_long_rope_reference

It writes `long_rope.json`: transformers' version and, for each case of `tests/engine/long_rope.py`,
the log-probability of every token of its prompt but the first, most of them at positions beyond
the model's original length. For "dynamic" the tables are those of the longest sequence, whatever
the prompt's length: a cached key must not depend on it.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.engine import long_rope

FILE = Path(__file__).with_name("long_rope.json")


@torch.inference_mode()
def logprobs(name: str) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        model = transformers.LlamaForCausalLM.from_pretrained(
            long_rope.write(Path(folder), name), dtype=torch.float32
        )
    if name == "dynamic":
        rotary = model.model.rotary_emb
        compute = ROPE_INIT_FUNCTIONS["dynamic"]
        rotary.inv_freq = compute(model.config, "cpu", seq_len=long_rope.DERIVED)[0]
        rotary.rope_type = "default"
    logits = model(input_ids=torch.tensor([long_rope.PROMPT])).logits[0].double()
    targets = torch.tensor(long_rope.PROMPT[1:])[:, None]
    return torch.log_softmax(logits[:-1], dim=-1).gather(1, targets)[:, 0].tolist()


def main() -> None:
    torch.set_num_threads(1)
    lines = [
        f"{json.dumps(name)}: {json.dumps([round(value, 5) for value in logprobs(name)])}"
        for name in long_rope.CASES
    ]
    cases = ",\n".join(lines)
    FILE.write_text(
        f'{{"transformers": "{transformers.__version__}", "cases": {{\n{cases}\n}}}}\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
