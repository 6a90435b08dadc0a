"""The model on paper: bytes counted by hand, and the page of documentation that quotes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallas_kernels.roofline import (
    CHIPS,
    Heads,
    best_splits,
    decode,
    page_overhead,
    prefill,
    tables,
)

LLAMA = Heads(32, 8, 128)
H200 = CHIPS["H200"]


def test_a_decode_step_reads_each_key_and_value_once():
    found = decode(H200, LLAMA, batch=64, context=8192)
    pages = 64 * 8192 * 8 * 128 * 2 * 2
    queries_and_outputs = 2 * 64 * 32 * 128 * 2
    table = 64 * 8192 // 16 * 4
    assert found.bytes == pages + queries_and_outputs + table
    assert found.flops == 4 * 64 * 8192 * 8 * 16 * 128
    assert found.bound == "memory"
    assert found.memory == pytest.approx(found.bytes / (4.8e12 * found.busy))


def test_factors_of_one_byte_pages_are_counted():
    assert Heads(32, 8, 128, itemsize=1).bytes_per_token == 2 * 8 * (128 + 4)


def test_a_shared_prefix_is_read_once():
    whole = decode(H200, LLAMA, 64, 8192).bytes
    shared = decode(H200, LLAMA, 64, 8192, shared=4096).bytes
    saved = 63 * 4096
    assert whole - shared == saved * LLAMA.bytes_per_token + saved / 16 * 4


def test_prefill_is_bound_by_compute_and_counts_causal_pairs():
    found = prefill(H200, LLAMA, 4096)
    assert found.flops == 4 * 32 * 128 * 4096 * 4097 / 2
    assert found.bound == "compute"
    chunks = sum(prefill(H200, LLAMA, 1024, cached).flops for cached in range(0, 4096, 1024))
    assert chunks == found.flops


def test_few_sequences_are_split_and_many_are_not():
    assert best_splits(H200, LLAMA, 1, 8192) >= 16
    assert best_splits(H200, LLAMA, 64, 8192) == 1
    assert best_splits(H200, LLAMA, 1, 64) == 1


def test_half_a_page_is_lost():
    assert page_overhead(16, 120) == 8 / 128


def test_the_documentation_quotes_the_model():
    page = Path(__file__).resolve().parents[2] / "docs" / "roofline.md"
    assert tables() in page.read_text(encoding="utf-8")
