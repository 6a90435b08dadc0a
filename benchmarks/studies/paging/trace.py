"""Traces of prompt and output lengths, from a file or drawn from a documented mix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paxkv.bench.json_lines import json_objects


@dataclass(frozen=True, slots=True)
class Lengths:
    """One request: tokens of its prompt and of its whole answer."""

    prompt: int
    output: int

    @property
    def total(self) -> int:
        return self.prompt + self.output


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival, all there at once."""

    name: str
    requests: tuple[Lengths, ...]

    @property
    def mean_prompt(self) -> float:
        return sum(r.prompt for r in self.requests) / len(self.requests)

    @property
    def mean_output(self) -> float:
        return sum(r.output for r in self.requests) / len(self.requests)


@dataclass(frozen=True)
class Mix:
    """Independent log-normal prompt and output lengths, cut off where the context ends.

    mean_prompt, mean_output: tokens, before the cut.
    spread: standard deviation over mean. Articles give the means alone; 1.0 is what an
        exponential distribution has, the one of most entropy with a given mean.
    """

    name: str
    mean_prompt: float
    mean_output: float
    spread: float = 1.0

    def draw(self, num_requests: int, max_model_len: int, seed: int = 0) -> Trace:
        """A trace; the same arguments give the same one."""
        random = np.random.default_rng(seed)
        requests = []
        for _ in range(num_requests):
            prompt = min(self._length(random, self.mean_prompt), max_model_len - 1)
            output = min(self._length(random, self.mean_output), max_model_len - prompt)
            requests.append(Lengths(prompt, output))
        return Trace(f"{self.name} (spread {self.spread:g}, seed {seed})", tuple(requests))

    def _length(self, random: np.random.Generator, mean: float) -> int:
        variance = math.log1p(self.spread**2)
        drawn = random.lognormal(math.log(mean) - variance / 2, math.sqrt(variance))
        return max(1, round(drawn))


# Means of section 6.1 and figure 11 of the PagedAttention paper (Kwon et al., SOSP 2023).
SHAREGPT = Mix("ShareGPT-like", 161, 338)
ALPACA = Mix("Alpaca-like", 19, 58)


def read_trace(path: str | Path, max_model_len: int) -> Trace:
    """Read JSON lines with `prompt_len` and `output_len`, or a workload file's lines.

    Raises:
        ValueError: no such file, no request in it, or a line that is none or is longer than
            `max_model_len`; names the line.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"trace file {path} does not exist")
    requests = []
    for where, fields in json_objects(path):
        requests.append(_parse(fields, where, max_model_len))
    if not requests:
        raise ValueError(f"trace file {path} holds no request")
    return Trace(path.name, tuple(requests))


def _parse(fields: dict[str, Any], where: str, max_model_len: int) -> Lengths:
    prompt = fields.get("prompt_len")
    if prompt is None and isinstance(fields.get("prompt_token_ids"), list):
        prompt = len(fields["prompt_token_ids"])
    lengths = Lengths(
        _count(prompt, "prompt_len", where),
        _count(fields.get("output_len", fields.get("max_tokens")), "output_len", where),
    )
    if lengths.total > max_model_len:
        raise ValueError(
            f"{where}: prompt_len + output_len is {lengths.total}; "
            f"at most max_model_len={max_model_len}"
        )
    return lengths


def _count(value: Any, name: str, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{where}: {name} is {value!r}, must be an integer of at least 1")
    return value
