"""Workload files: one JSON object a line, one request each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paxkv.bench.json_lines import json_objects


@dataclass(frozen=True)
class WorkloadRequest:
    """One line of a workload file.

    Attributes:
        prompt_token_ids: the prompt, at least one token id.
        max_tokens: output tokens to make for each of the `n` sequences.
        temperature: 0 is greedy.
        n: sequences sampled from this prompt.
        seed: sampling seed of this request, or None.
        ignore_eos: go on to `max_tokens` after an end-of-sequence token.
    """

    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    n: int = 1
    seed: int | None = None
    ignore_eos: bool = False


@dataclass(frozen=True)
class Workload:
    """The requests of one file, all submitted at once."""

    name: str
    requests: tuple[WorkloadRequest, ...]

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens, each prompt counted once whatever its `n`."""
        return sum(len(request.prompt_token_ids) for request in self.requests)

    @property
    def num_sequences(self) -> int:
        return sum(request.n for request in self.requests)


def read_workload(path: str | Path, limit: int | None = None) -> Workload:
    """Read a workload file, the first `limit` requests of it if given.

    Raises:
        ValueError: the file is missing or empty, or a line is not a request; names the line.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"workload file {path} does not exist")
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}, must be at least 1")
    requests = []
    for where, fields in json_objects(path):
        requests.append(_parse(fields, where))
        if len(requests) == limit:
            break
    if not requests:
        raise ValueError(f"workload file {path} holds no request")
    return Workload(name=path.name, requests=tuple(requests))


def _parse(fields: dict[str, Any], where: str) -> WorkloadRequest:
    prompt = fields.get("prompt_token_ids")
    if not isinstance(prompt, list) or not prompt or not all(_is_int(token) for token in prompt):
        raise ValueError(f"{where}: prompt_token_ids must be a non-empty list of token ids")
    if min(prompt) < 0:
        raise ValueError(f"{where}: prompt_token_ids holds {min(prompt)}, must be at least 0")
    seed = fields.get("seed")
    if seed is not None and not _is_int(seed):
        raise ValueError(f"{where}: seed is {seed!r}, must be an integer or null")
    temperature = fields.get("temperature", 0.0)
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or temperature < 0:
        raise ValueError(f"{where}: temperature is {temperature!r}, must be a number of at least 0")
    ignore_eos = fields.get("ignore_eos", False)
    if not isinstance(ignore_eos, bool):
        raise ValueError(f"{where}: ignore_eos is {ignore_eos!r}, must be true or false")
    return WorkloadRequest(
        prompt_token_ids=tuple(prompt),
        max_tokens=_positive(fields, "max_tokens", 16, where),
        temperature=float(temperature),
        n=_positive(fields, "n", 1, where),
        seed=seed,
        ignore_eos=ignore_eos,
    )


def _positive(fields: dict[str, Any], name: str, default: int, where: str) -> int:
    value = fields.get(name, default)
    if not _is_int(value) or value < 1:
        raise ValueError(f"{where}: {name} is {value!r}, must be an integer of at least 1")
    return int(value)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
