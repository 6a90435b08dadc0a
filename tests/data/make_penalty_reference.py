"""Makes the stored reference of repetition_penalty: transformers in float32 on the CPU.

    pip install -e '.[parity]' && python -m tests.data.make_penalty_reference

It writes `penalties.json`: transformers' version and, for each prompt and penalty, the greedy
token ids of `generate` and the gap between the two largest processed logits at each.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from convert import open_checkpoint
from paxkv.bench.transformers_model import build_transformers_model

HERE = Path(__file__).parent
FILE = HERE / "penalties.json"
PROMPTS = (0, 1)  # of scores.npz
PENALTIES = (1.8, 1.1, 0.8)
NUM_TOKENS = 20


@torch.inference_mode()
def case(model: Any, prompt: list[int], penalty: float) -> dict[str, Any]:
    found = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        repetition_penalty=penalty,
        max_new_tokens=NUM_TOKENS,
        eos_token_id=None,
        do_sample=False,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    best = torch.topk(torch.cat(found.scores), 2).values
    return {
        "prompt": prompt,
        "repetition_penalty": penalty,
        "token_ids": found.sequences[0, len(prompt) :].tolist(),
        "gaps": [round(float(gap), 5) for gap in best[:, 0] - best[:, 1]],
    }


def main() -> None:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = build_transformers_model(open_checkpoint("smollm2-135m"))
    stored = np.load(HERE / "scores.npz")
    lines = [
        json.dumps(case(model, stored[f"ids_{index}"].tolist(), penalty))
        for index in PROMPTS
        for penalty in PENALTIES
    ]
    cases = ",\n".join(lines)
    FILE.write_text(
        f'{{"transformers": "{transformers.__version__}", "cases": [\n{cases}\n]}}\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
