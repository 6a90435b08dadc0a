"""Makes the stored reference data: transformers in float32 on the CPU, batch 1, eager loop.

    pip install -e '.[parity]' && python tests/data/make_reference.py

It reads `w1_offline_mixed.jsonl` beside it (64 requests, greedy) and writes

- `w1_reference.jsonl`: for each request its token ids and, for each token, the gap between the
  two largest logits. Where that gap is below 1e-3 two correct engines may differ.
- `scores.npz`: for each prompt of `SCORED_PROMPTS`, `i` its index: `ids_i`, the prompt's token
  ids; `logits_i`, the logits after the prompt at every `VOCAB_STRIDE`-th id; `top_ids_i` and
  `top_logits_i`, the `NUM_TOP` largest, best first; `logsumexp_i`; `prompt_logprobs_i`, natural
  logarithm of the probability of each prompt token but the first; `prompt_ranks_i`, from 1.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from convert import open_checkpoint
from paxkv.bench.transformers_model import build_transformers_model
from paxkv.bench.workload import WorkloadRequest, read_workload

HERE = Path(__file__).parent
VOCAB_STRIDE = 48
NUM_TOP = 64
SCORED_PROMPTS = (
    "The capital of France is",
    "1 2 3 4",
    "Příliš žluťoučký kůň, 今天天气很好, def f(x):\n    return x",
    "Paging splits memory into blocks of one size, so that a program needs no single large "
    "hole for its data. A table says where each block lies. The operating system can move a "
    "block, share it between programs, or put it aside on disk, and nobody notices:",
)


@torch.inference_mode()
def greedy_with_gaps(model: Any, request: WorkloadRequest) -> tuple[list[int], list[float]]:
    """Token ids, and the gap between the two largest logits at each."""
    tokens: list[int] = []
    gaps: list[float] = []
    ids, cache = torch.tensor([request.prompt_token_ids]), None
    stops = () if request.ignore_eos else model.config.eos_token_id
    while len(tokens) < request.max_tokens and (not tokens or tokens[-1] not in stops):
        output = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = output.past_key_values
        best = torch.topk(output.logits[0, -1], 2)
        tokens.append(int(best.indices[0]))
        gaps.append(round(float(best.values[0] - best.values[1]), 5))
        ids = best.indices[:1].unsqueeze(0)
    return tokens, gaps


@torch.inference_mode()
def scores(model: Any, ids: list[int]) -> dict[str, np.ndarray]:
    """Logits after the prompt, and what the model thinks of the prompt itself."""
    logits = model(input_ids=torch.tensor([ids])).logits[0].double()
    logprobs = torch.log_softmax(logits, dim=-1)
    targets = torch.tensor(ids[1:])
    chosen = logprobs[:-1].gather(1, targets[:, None])
    top = torch.topk(logits[-1], NUM_TOP)
    return {
        "ids": np.array(ids, dtype=np.int32),
        "logits": logits[-1, ::VOCAB_STRIDE].float().numpy(),
        "top_ids": top.indices.int().numpy(),
        "top_logits": top.values.float().numpy(),
        "logsumexp": np.float32(torch.logsumexp(logits[-1], dim=-1)),
        "prompt_logprobs": chosen[:, 0].float().numpy(),
        "prompt_ranks": (1 + (logprobs[:-1] > chosen).sum(dim=1)).int().numpy(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--limit", type=int, help="only the first N requests, printed, not written")
    args = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    checkpoint = open_checkpoint(args.model)
    model = build_transformers_model(checkpoint)

    lines = (HERE / "w1_offline_mixed.jsonl").read_text(encoding="utf-8").splitlines()
    workload = read_workload(HERE / "w1_offline_mixed.jsonl", args.limit)
    records = []
    for line, request in zip(lines, workload.requests):
        tokens, gaps = greedy_with_gaps(model, request)
        record = {"id": json.loads(line)["id"], "token_ids": tokens, "gaps": gaps}
        records.append(json.dumps(record))
        print(record["id"], len(tokens), "tokens, smallest gap", min(gaps), flush=True)
    if args.limit is not None:
        return
    (HERE / "w1_reference.jsonl").write_text("\n".join(records) + "\n", encoding="utf-8")

    tokenizer = checkpoint.tokenizer()
    arrays = {
        f"{name}_{index}": array
        for index, prompt in enumerate(SCORED_PROMPTS)
        for name, array in scores(model, tokenizer.encode(prompt)).items()
    }
    np.savez_compressed(HERE / "scores.npz", **arrays)


if __name__ == "__main__":
    main()
