"""SA-05, SA-06: penalties, bias and bans, each row for itself."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from float64_reference import penalised

from paxkv.sampling.logit_edits import edit_logits, no_edits
from paxkv.sampling.token_counts import (
    add_output_tokens,
    add_prompt_tokens,
    copy_slots,
    empty_counts,
    reset_slots,
)

WIDTH = 301
edit = jax.jit(edit_logits)
add_prompt = jax.jit(add_prompt_tokens, donate_argnums=0)
add_output = jax.jit(add_output_tokens, donate_argnums=0)
reset = jax.jit(reset_slots, donate_argnums=0)
copy = jax.jit(copy_slots, donate_argnums=0)


def ints(*values):
    return np.array(values, np.int32)


def logits_of(rows, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, WIDTH)).astype(np.float32) * 3


def counted(prompt, output, slot=2, chunk=3):
    """Counts with `slot` fed in chunks padded with zeros, as the engine does."""
    counts = empty_counts(4, WIDTH)
    for start in range(0, len(prompt), chunk):
        part = prompt[start : start + chunk]
        slots = [slot] * len(part) + [0] * (4 - len(part))
        counts = add_prompt(counts, ints(*slots), ints(*part, *[0] * (4 - len(part))))
    for token in output:
        counts = add_output(counts, ints(0, slot, 0), ints(0, token, 0))
    return counts


PROMPT = [5, 9, 9, 300, 17, 0, 44]
OUTPUT = [9, 9, 100, 299, 9, 17]


@pytest.mark.parametrize(
    "penalties",
    [
        {"repetition": 1.8},
        {"repetition": 0.5},
        {"presence": 1.5},
        {"frequency": 0.7},
        {"frequency": -0.7, "presence": -1.0},
        {"repetition": 1.3, "presence": 0.5, "frequency": 0.25},
    ],
    ids=str,
)
def test_penalties_against_the_definitions(penalties):
    counts = counted(PROMPT, OUTPUT)
    logits = logits_of(3)
    edits = no_edits(3, WIDTH)
    for name, value in penalties.items():
        getattr(edits, name)[1] = value
    edits.slots[1] = 2
    result = np.asarray(edit(logits, edits, counts))
    expected = penalised(logits[1], PROMPT, OUTPUT, **penalties)
    assert np.abs(result[1] - expected).max() < 1e-5
    assert (result[[0, 2]] == logits[[0, 2]]).all()


def test_presence_and_frequency_ignore_the_prompt():
    counts = counted(PROMPT, [])
    edits = no_edits(1, WIDTH)
    edits.presence[:], edits.frequency[:], edits.slots[:] = 2.0, 2.0, 2
    logits = logits_of(1)
    assert (np.asarray(edit(logits, edits, counts)) == logits).all()


def test_a_slot_is_forgotten_and_copied():
    counts = counted(PROMPT, OUTPUT)
    seen = np.asarray(counts.prompt[2]), np.asarray(counts.output[2])
    counts = copy(counts, ints(2, 2, 0), ints(1, 4, 0))
    counts = reset(counts, ints(2, 0, 0))
    for slot in (1, 4):
        assert (counts.prompt[slot] == seen[0]).all()
        assert (counts.output[slot] == seen[1]).all()
    for slot in (2, 3):
        assert not np.asarray(counts.prompt[slot]).any()
        assert not np.asarray(counts.output[slot]).any()
    assert seen[1].sum() == len(OUTPUT)
    assert seen[0].sum() == len(set(PROMPT))


def test_bias_reaches_its_token_only_and_padding_does_nothing():
    edits = no_edits(2, WIDTH, num_biases=4)
    edits.bias_ids[0, :2] = [0, WIDTH - 1]
    edits.bias_values[0, :2] = [3.0, -100.0]
    logits = logits_of(2)
    expected = logits.copy()
    expected[0, 0] += np.float32(3.0)
    expected[0, WIDTH - 1] -= np.float32(100.0)
    assert (np.asarray(edit(logits, edits, empty_counts(1, WIDTH))) == expected).all()


def test_bans_follow_the_bits():
    random = np.random.default_rng(3)
    allowed = random.random((2, WIDTH)) < 0.5
    edits = no_edits(2, WIDTH)
    bits = np.zeros((2, edits.allowed.shape[1] * 32), bool)
    bits[:, :WIDTH] = allowed
    edits.allowed[:] = np.packbits(bits, axis=1, bitorder="little").view(np.uint32)
    logits = logits_of(2)
    expected = np.where(allowed, logits, -np.inf)
    assert (np.asarray(edit(logits, edits, empty_counts(1, WIDTH))) == expected).all()


def test_bias_comes_before_penalties_and_bans_win():
    counts = counted(PROMPT, OUTPUT)
    edits = no_edits(1, WIDTH)
    edits.bias_ids[:], edits.bias_values[:] = 9, 50.0
    edits.repetition[:], edits.slots[:] = 2.0, 2
    logits = logits_of(1)
    expected = (logits[0, 9] + 50.0) / 2.0
    assert np.asarray(edit(logits, edits, counts))[0, 9] == pytest.approx(expected)
    edits.allowed[0, 0] ^= np.uint32(1 << 9)
    assert np.asarray(edit(logits, edits, counts))[0, 9] == -np.inf


def test_without_edits_logits_stay_as_they_are():
    logits = logits_of(3)
    assert (np.asarray(edit(logits, no_edits(3, WIDTH), counted(PROMPT, OUTPUT))) == logits).all()
