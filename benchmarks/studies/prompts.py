"""Prompts as token ids, from a file or made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.studies.paging.system_prompt import shared_prompts
from benchmarks.studies.paging.trace import SHAREGPT
from paxkv.bench.json_lines import json_lines

SYSTEM_TOKENS = 500
NUM_PROMPTS = 100
EARLY_TOKENS = 8


def synthetic_prompts() -> list[list[int]]:
    """A system prompt with 8 tokens of each request's own (a date, a name) in front of it."""
    requests = SHAREGPT.draw(NUM_PROMPTS, 1024).requests
    return shared_prompts(requests, SYSTEM_TOKENS, EARLY_TOKENS)


def read_prompts(path: str | Path, model: str | None = None) -> list[list[int]]:
    """Prompts of a file of JSON lines with `prompt_token_ids`, or `prompt` and a model's tokenizer.

    Raises:
        ValueError: no such file, a line without a prompt, or text without a model.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"trace file {path} does not exist")
    tokenizer: Any = None
    prompts = []
    for where, fields in json_lines(path):
        ids = fields.get("prompt_token_ids") if isinstance(fields, dict) else None
        if ids is None and isinstance(fields, dict) and isinstance(fields.get("prompt"), str):
            if model is None:
                raise ValueError(f"{where}: prompt is text; --model names the tokenizer to use")
            tokenizer = tokenizer or _tokenizer(model)
            ids = tokenizer.encode(fields["prompt"])
        if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
            raise ValueError(f"{where}: needs prompt_token_ids, a non-empty list, or prompt")
        prompts.append(ids)
    if not prompts:
        raise ValueError(f"trace file {path} holds no prompt")
    return prompts


def _tokenizer(model: str) -> Any:
    from convert import open_checkpoint

    return open_checkpoint(model).tokenizer()
