"""What a beam may go on with, in float64: log-probabilities first, then the edits."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from float64_reference import penalised, softmax

from paxkv.sampling.logit_edits import no_edits
from paxkv.sampling.sampler import no_rows, sample
from paxkv.sampling.token_counts import add_output_tokens, add_prompt_tokens, empty_counts

ROWS, WIDTH = 5, 12
run = jax.jit(functools.partial(sample, num_logprobs=1, with_logprobs=False, beam_width=WIDTH))


def logits_of(width: int) -> np.ndarray:
    return (np.random.default_rng(width).normal(size=(ROWS, width)) * 4 + 30).astype(np.float32)


def ends_of(width: int, rows: int = ROWS) -> np.ndarray:
    """Every fifth token ends a beam: more than any fixed number of end ids."""
    ends = np.zeros((rows, -(-width // 32) * 32), bool)
    ends[:, :width:5] = True
    return np.packbits(ends, axis=1, bitorder="little").view("<u4")


def assert_candidates(found: object, row: int, expected: np.ndarray) -> None:
    """The best that end a beam, then twice as many of the best that do not."""
    order = np.argsort(-expected, kind="stable")
    order = np.concatenate([order[order % 5 == 0][:WIDTH], order[order % 5 != 0][: 2 * WIDTH]])
    assert np.asarray(found.candidates.ids[row]).tolist() == order.tolist()
    assert np.allclose(found.candidates.logprobs[row], expected[order], atol=1e-4)


@pytest.mark.parametrize("width", [64, 300, 49152])
def test_the_best_candidates_are_log_probabilities(width: int) -> None:
    logits, beams = logits_of(width), np.array([1, 0, 1, 1, 0], bool)
    found = run(
        logits,
        no_rows(ROWS),
        no_edits(ROWS, width),
        empty_counts(1, width),
        beams=beams,
        ends=ends_of(width),
    )
    for row in np.flatnonzero(beams):
        assert_candidates(found, row, np.log(softmax(logits[row].astype(np.float64))))


def test_edits_change_log_probabilities_and_those_are_not_normalised_again() -> None:
    """transformers' order; a penalty on logits, which may be positive, would give another."""
    width = 300
    logits, beams = logits_of(width), np.ones(ROWS, bool)
    prompt, output = [3, 7, 8], [int(logits[0].argmax()), 5]
    counts = add_prompt_tokens(empty_counts(1, width), np.ones(3, np.int32), np.int32(prompt))
    counts = add_output_tokens(counts, np.ones(2, np.int32), np.int32(output))
    edits = no_edits(ROWS, width)
    edits.slots[0], edits.repetition[0], edits.frequency[0] = 1, 1.4, 0.3
    banned = int(logits[1].argmax())
    edits.allowed[1, banned // 32] &= ~np.uint32(1 << banned % 32)
    edits.bias_ids[2], edits.bias_values[2] = 11, 25.0
    found = run(logits, no_rows(ROWS), edits, counts, beams=beams, ends=ends_of(width))
    raw = [np.log(softmax(row.astype(np.float64))) for row in logits]
    assert_candidates(found, 0, penalised(raw[0], prompt, output, frequency=0.3, repetition=1.4))
    raw[1][banned] = -np.inf
    raw[2][11] += 25
    for row in (1, 2, 3, 4):
        assert_candidates(found, row, raw[row])


def test_a_row_whose_bans_leave_few_has_minus_infinity_behind_them() -> None:
    width = 64
    edits = no_edits(1, width)
    edits.allowed[:] = [[0b1011, 0]]
    found = run(
        logits_of(width)[:1],
        no_rows(1),
        edits,
        empty_counts(1, width),
        beams=np.ones(1, bool),
        ends=np.uint32([[0b10, 0]]),
    )
    values = np.asarray(found.candidates.logprobs[0])
    ids = np.asarray(found.candidates.ids[0])
    assert ids[0] == 1
    assert sorted(ids[WIDTH : WIDTH + 2].tolist()) == [0, 3]
    assert np.isfinite(values[[0, WIDTH, WIDTH + 1]]).all()
    assert np.isneginf(values[1:WIDTH]).all()
    assert np.isneginf(values[WIDTH + 2 :]).all()


def test_without_beams_there_are_zeros() -> None:
    found = run(
        logits_of(300),
        no_rows(ROWS),
        no_edits(ROWS, 300),
        empty_counts(1, 300),
        beams=np.zeros(5),
        ends=ends_of(300),
    )
    assert not np.asarray(found.candidates.ids).any()
    assert not np.asarray(found.candidates.logprobs).any()
