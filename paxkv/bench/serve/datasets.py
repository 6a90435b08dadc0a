"""Datasets: prompts and lengths of their answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from paxkv.bench.json_lines import json_objects

DatasetName = Literal["random", "shared-prefix", "sharegpt", "jsonl"]
FIRST_ID = 3  # special tokens come before it in most vocabularies
SHORTEST = 4
LONGEST_PROMPT = 1024
LONGEST_TOTAL = 2048
NOT_SENT = frozenset(
    {"id", "prompt", "prompt_token_ids", "messages", "max_tokens", "output_tokens"}
)


@dataclass(frozen=True)
class Ask:
    """One request.

    prompt: text, token ids, or messages of a chat. max_tokens: of the answer. fields: sent along.
    """

    prompt: str | list[int] | list[dict[str, Any]]
    max_tokens: int
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DatasetOptions:
    """Which prompts are sent.

    Attributes:
        dataset_name: random token ids; shared-prefix: groups of them with the same beginning;
            sharegpt: first turns of a file of conversations; jsonl: a workload file, one JSON
            object a line with prompt, prompt_token_ids or messages, and max_tokens.
        dataset_path: file of sharegpt or jsonl.
        num_prompts: requests in all; a file that has fewer is gone through again.
        input_len: tokens of a random prompt, or of what follows a shared prefix.
        output_len: tokens of an answer; of sharegpt the recorded answer's length by default.
        range_ratio: lengths vary by up to this share, up and down.
        prefix_len: tokens of a shared prefix.
        num_prefixes: how many there are.
        vocab_size: random ids are below it; the served model must know them.
        tokenizer: model whose tokenizer counts the tokens of sharegpt's texts.
    """

    dataset_name: DatasetName = "random"
    dataset_path: str | None = None
    num_prompts: int = 100
    input_len: int = 256
    output_len: int | None = None
    range_ratio: float = 0.0
    prefix_len: int = 256
    num_prefixes: int = 4
    vocab_size: int = 1000
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        for name, least in (
            ("num_prompts", 1),
            ("input_len", 1),
            ("output_len", 1),
            ("prefix_len", 1),
            ("num_prefixes", 1),
            ("vocab_size", FIRST_ID + 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}, must be at least {least}")
        if not 0 <= self.range_ratio < 1:
            raise ValueError(f"range_ratio is {self.range_ratio}, must be at least 0 and below 1")
        if (self.dataset_path is None) == (self.dataset_name in ("sharegpt", "jsonl")):
            needs = "needs" if self.dataset_path is None else "takes no"
            raise ValueError(f"dataset_name={self.dataset_name} {needs} dataset_path")

    def asks(self, seed: int) -> list[Ask]:
        """The requests, the same for the same seed. Raises ValueError for a bad file."""
        random = np.random.default_rng(seed)
        if self.dataset_name == "random":
            return list(self._random(random))
        if self.dataset_name == "shared-prefix":
            return list(self._shared_prefix(random))
        assert self.dataset_path is not None
        path = Path(self.dataset_path)
        if not path.is_file():
            raise ValueError(f"dataset_path {path} does not exist")
        found = self._sharegpt(path, random) if self.dataset_name == "sharegpt" else _jsonl(path)
        if not found:
            raise ValueError(f"dataset_path {path} has no usable request")
        return [found[i % len(found)] for i in range(self.num_prompts)]

    def _length(self, length: int, random: np.random.Generator) -> int:
        spread = int(length * self.range_ratio)
        return max(1, int(random.integers(length - spread, length + spread + 1)))

    def _ids(self, length: int, random: np.random.Generator) -> list[int]:
        return random.integers(FIRST_ID, self.vocab_size, length).tolist()

    def _random(self, random: np.random.Generator) -> Iterator[Ask]:
        for _ in range(self.num_prompts):
            prompt = self._ids(self._length(self.input_len, random), random)
            yield Ask(prompt, self._length(self.output_len or 128, random))

    def _shared_prefix(self, random: np.random.Generator) -> Iterator[Ask]:
        prefixes = [self._ids(self.prefix_len, random) for _ in range(self.num_prefixes)]
        for number in range(self.num_prompts):
            own = self._ids(self._length(self.input_len, random), random)
            prompt = prefixes[number % self.num_prefixes] + own
            yield Ask(prompt, self._length(self.output_len or 128, random))

    def _sharegpt(self, path: Path, random: np.random.Generator) -> list[Ask]:
        """First turns and the length of what was answered, very short and long ones left out."""
        count = self._counter()
        turns = list(_first_turns(path))
        asks: list[Ask] = []
        for place in random.permutation(len(turns)).tolist():
            if len(asks) == self.num_prompts:
                break
            prompt, answer = turns[place]
            length = self.output_len or (count(answer) if count else 0)
            if count:
                size = count(prompt)
                usable = SHORTEST <= size <= LONGEST_PROMPT and length >= SHORTEST
                if not usable or size + length > LONGEST_TOTAL:
                    continue
            asks.append(Ask(prompt, length))
        return asks

    def _counter(self) -> Callable[[str], int] | None:
        if self.tokenizer is None:
            if self.output_len is None:
                raise ValueError("dataset_name=sharegpt needs tokenizer, or output_len")
            return None
        from convert import open_checkpoint

        tokenizer = open_checkpoint(self.tokenizer).tokenizer()
        return lambda text: len(tokenizer.encode(text))


def _first_turns(path: Path) -> Iterator[tuple[str, str]]:
    try:
        entries = json.loads(path.read_bytes())
        for entry in entries:
            turns = entry.get("conversations") or entry.get("conversation") or []
            if len(turns) >= 2:
                yield turns[0]["value"], turns[1]["value"]
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"dataset_path {path} is not a ShareGPT file: {error}") from None


def _jsonl(path: Path) -> list[Ask]:
    return [_ask(fields, where) for where, fields in json_objects(path)]


def _ask(fields: dict[str, Any], where: str) -> Ask:
    names = ("prompt_token_ids", "prompt", "messages")
    prompt = next((fields[name] for name in names if fields.get(name)), None)
    if prompt is None:
        raise ValueError(f"{where}: needs prompt, prompt_token_ids or messages")
    length = fields.get("max_tokens", fields.get("output_tokens", 16))
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise ValueError(f"{where}: max_tokens is {length!r}, must be an integer of at least 1")
    sent = {name: value for name, value in fields.items() if name not in NOT_SENT}
    return Ask(prompt, length, sent)
