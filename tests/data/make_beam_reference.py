"""Makes the stored reference of beam search: transformers in float32 on the CPU.

    pip install -e '.[parity]' && python -m tests.data.make_beam_reference

It writes `beams.json`: transformers' version and, for each case of `tests/engine/beam_cases.py`
in their order, the outputs and their scores, best first (no scores for one beam, which
transformers searches greedily).
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers

from tests.engine import transformers_beams
from tests.engine.beam_cases import CASES, PROMPTS

FILE = Path(__file__).parent / "beams.json"


def main() -> None:
    torch.set_num_threads(1)
    lines = []
    for case in CASES:
        outputs, scores = transformers_beams.search(
            transformers_beams.model(),
            PROMPTS[case.prompt],
            case.width,
            length_penalty=case.length_penalty,
            early_stopping=case.early_stopping,
        )
        rounded = None if scores is None else [round(score, 6) for score in scores]
        lines.append(json.dumps({"outputs": outputs, "scores": rounded}))
    cases = ",\n".join(lines)
    FILE.write_text(
        f'{{"transformers": "{transformers.__version__}", "cases": [\n{cases}\n]}}\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
