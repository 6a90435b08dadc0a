"""Attention over pages as the contract says it, one token at a time, in numpy float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Case:
    """One call of `ragged_paged_attention`; every slot that must not be read holds NaN.

    lengths: (query tokens, cached tokens) of each sequence. padding: query tokens that belong to
    nobody. options: keyword arguments of the call.
    """

    lengths: list[tuple[int, int]]
    page_size: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    padding: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        size, dim = self.page_size, self.head_dim
        needed = [-(-cached // size) for _, cached in self.lengths]
        num_pages = 1 + sum(needed) + 2
        shape = (num_pages, self.kv_heads, size, dim)
        self.k_pages = np.full(shape, np.nan, np.float32)
        self.v_pages = np.full(shape, np.nan, np.float32)
        # Page 0 is padding's: finite in service, so finite here.
        self.k_pages[0] = self.v_pages[0] = 0.0
        self.tables = np.zeros((len(self.lengths), max(needed) + 2), np.int32)
        order = iter(random.permutation(np.arange(1, num_pages)))
        for row, (_, cached) in enumerate(self.lengths):
            for column in range(needed[row]):
                page = next(order)
                self.tables[row, column] = page
                used = min(size, cached - column * size)
                for pages in (self.k_pages, self.v_pages):
                    drawn = random.normal(size=(self.kv_heads, used, dim))
                    pages[page, :, :used] = drawn
        queries = [count for count, _ in self.lengths]
        self.query_start = np.cumsum([0, *queries]).astype(np.int32)
        self.kv_lens = np.array([cached for _, cached in self.lengths], np.int32)
        total = sum(queries) + self.padding
        self.q = random.normal(size=(total, self.heads, dim)).astype(np.float32)

    def arguments(self) -> tuple[np.ndarray, ...]:
        return (self.q, self.k_pages, self.v_pages, self.tables, self.kv_lens, self.query_start)

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """Outputs `[num_tokens, heads, head_dim]` and log-sum-exps `[num_tokens, heads]`."""
        scale = self.options.get("scale") or self.head_dim**-0.5
        window = self.options.get("window")
        softcap = self.options.get("softcap")
        sinks = self.options.get("sinks")
        out = np.zeros(self.q.shape, np.float64)
        lse = np.full(self.q.shape[:2], -np.inf)
        for row, (count, cached) in enumerate(self.lengths):
            for index in range(count):
                position = cached - count + index
                first = 0 if window is None else max(0, position + 1 - window)
                token = self.query_start[row] + index
                for head in range(self.heads):
                    keys, values = self._cached(row, head, first, position + 1)
                    scores = scale * keys @ self.q[token, head].astype(np.float64)
                    if softcap is not None:
                        scores = softcap * np.tanh(scores / softcap)
                    weights, total = _softmax(scores, None if sinks is None else sinks[head])
                    out[token, head] = weights @ values
                    lse[token, head] = total
        return out, lse

    def _cached(self, row: int, head: int, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        group = head // (self.heads // self.kv_heads)
        slots = [
            (self.tables[row, p // self.page_size], p % self.page_size) for p in range(first, end)
        ]
        found = []
        for pages, name in ((self.k_pages, "k_scale"), (self.v_pages, "v_scale")):
            factors = self.options.get(name)
            found.append(
                np.array(
                    [
                        pages[page, group, offset].astype(np.float64)
                        * (1.0 if factors is None else factors[page, offset, group])
                        for page, offset in slots
                    ]
                )
            )
        return found[0], found[1]


def _softmax(scores: np.ndarray, sink: float | None) -> tuple[np.ndarray, float]:
    every = scores if sink is None else np.append(scores, sink)
    total = every.max() + np.log(np.exp(every - every.max()).sum())
    return np.exp(scores - total), total
