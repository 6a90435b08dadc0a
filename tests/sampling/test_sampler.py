"""Samples on device against float64 references; SA-01, SA-03, BS-03."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from float64_reference import distribution, kept
from scipy.stats import chi2

from paxkv.sampling.logit_edits import no_edits
from paxkv.sampling.prng import split_seed
from paxkv.sampling.sampler import (
    RowSettings,
    _pick,
    no_rows,
    row_settings,
    row_words,
    sample,
    sample_tokens,
)
from paxkv.sampling.sampling_params import SamplingParams
from paxkv.sampling.token_counts import empty_counts

DRAWS = 8192
WIDTH = 300
choose = jax.jit(sample_tokens)


def rows_of(count, *, seed=7, child=0, position=None, **settings):
    rows = no_rows(count)
    rows.key[:] = split_seed(seed)
    rows.child[:] = child
    rows.position[:] = np.arange(count) if position is None else position
    rows.temperature[:] = 1.0
    for name, value in settings.items():
        getattr(rows, name)[:] = value
    return rows


def widened(logits):
    """Float32 [..., 300], padded with tokens that can never be sampled: one shape to compile."""
    logits = np.asarray(logits, np.float32)
    padding = [(0, 0)] * (logits.ndim - 1) + [(0, WIDTH - logits.shape[-1])]
    return np.pad(logits, padding, constant_values=-np.inf)


def samples(logits, **settings):
    many = jnp.tile(widened(logits), (DRAWS, 1))
    sampled = choose(many, rows_of(DRAWS, **settings))
    assert not np.asarray(sampled.bad).any()
    return np.asarray(sampled.tokens)


def assert_distribution(tokens, expected):
    """Pearson's test, cells of fewer than five expected samples taken together."""
    observed = np.bincount(tokens, minlength=len(expected))
    assert len(observed) == len(expected)
    assert observed[expected == 0].sum() == 0, "a token outside the kept set was sampled"
    large = expected * len(tokens) >= 5
    cells = [(observed[large], expected[large] * len(tokens))]
    if (rest := expected[~large].sum() * len(tokens)) > 1:
        cells.append((observed[~large].sum(keepdims=True), np.array([rest])))
    seen, wanted = (np.concatenate(part) for part in zip(*cells))
    statistic = ((seen - wanted) ** 2 / wanted).sum()
    assert chi2.sf(statistic, max(1, len(seen) - 1)) > 1e-4


FILTERS = [
    {},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"top_k": 7},
    {"top_k": 100},
    {"top_p": 0.3},
    {"top_p": 0.9},
    {"top_p": 1e-6},
    {"top_p": 0.999999},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_n_sigma": 0.5},
    {"top_n_sigma": 1.5},
    {"top_n_sigma": 1.5, "temperature": 4.0},
    {"top_n_sigma": 2.0, "temperature": 2.0, "top_k": 40, "top_p": 0.8, "min_p": 0.02},
    {"top_k": 30, "top_p": 0.7},
    {"top_k": 90, "top_p": 0.7, "temperature": 2.0},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.1, "temperature": 1.5},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_draws_follow_the_filtered_distribution(filters):
    logits = np.random.default_rng(0).normal(size=200) * 2
    assert_distribution(
        samples(logits, **filters), distribution(logits.astype(np.float32), **filters)
    )


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_entries_equal_to_the_last_kept_are_kept(filters):
    logits = np.round(np.random.default_rng(1).normal(size=200) * 2)
    alive = kept(logits, **filters)
    assert_distribution(samples(logits, **filters), distribution(logits, **filters))
    if filters.get("top_k") == 7:
        assert alive.sum() > 7


def test_top_n_sigma_keeps_what_float64_keeps_at_any_temperature():
    random = np.random.default_rng(11)
    for sigmas in (0.7, 1.0, 2.0):
        logits = (random.normal(size=200) * 3 + 40).astype(np.float32)
        alive = kept(logits, top_n_sigma=sigmas)
        assert 1 < alive.sum() < 190
        for temperature in (60.0, 600.0):
            seen = set(samples(logits, temperature=temperature, top_n_sigma=sigmas).tolist())
            assert seen == set(np.flatnonzero(alive).tolist())


def test_top_n_sigma_does_not_count_what_is_banned():
    """Banned entries far below would widen sigma, or make it infinite."""
    logits = np.array([5.0, 4.0, 3.0, 2.0, 1.0, -300.0, -300.0, -300.0])
    assert set(samples(logits, temperature=50.0, top_n_sigma=1)) == set(range(5))
    logits[5:] = -np.inf
    assert set(samples(logits, temperature=50.0, top_n_sigma=1)) == {0, 1}
    assert set(samples(logits, temperature=50.0, top_n_sigma=1e6)) == set(range(5))


def test_top_n_sigma_of_equal_logits_keeps_all_of_them():
    assert set(samples(np.zeros(5), top_n_sigma=1e-3)) == set(range(5))


def test_top_n_sigma_is_for_its_own_row_and_never_for_a_greedy_one():
    logits = np.random.default_rng(12).normal(size=(64, WIDTH)).astype(np.float32)
    rows = rows_of(64, temperature=2.0)
    rows.temperature[:16] = 0
    plain = np.asarray(choose(logits, rows).tokens)
    rows.top_n_sigma[:40] = 0.2
    filtered = np.asarray(choose(logits, rows).tokens)
    assert (filtered[:16] == logits[:16].argmax(-1)).all()
    assert (filtered[40:] == plain[40:]).all()
    for index in range(16, 40):
        assert kept(logits[index], top_n_sigma=0.2)[filtered[index]]
    assert (filtered[16:40] != plain[16:40]).any()


def test_top_p_counts_the_mass_after_top_k():
    logits = np.log(np.array([0.4, 0.2, 0.2 - 1e-3, 0.1, 0.1 + 1e-3]))
    alive = set(samples(logits, top_k=2, top_p=0.65))
    assert alive == {0}
    assert set(samples(logits, top_p=0.65)) == {0, 1, 2}


def test_tokens_of_probability_zero_are_never_drawn():
    logits = np.full(300, -np.inf)
    logits[[0, 131, 299]] = [-5.0, 0.0, -5.0]
    assert set(samples(logits, temperature=5.0)) == {0, 131, 299}
    logits[:] = -1e30
    logits[200] = 0.0
    assert set(samples(logits)) == {200}


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-24])
def test_pick_never_returns_weight_zero(uniform):
    random = np.random.default_rng(2)
    weights = random.random((500, 384)).astype(np.float32) ** 40
    weights[random.random(weights.shape) < 0.7] = 0.0
    weights[:, :5] = weights[:, -5:] = 0.0
    weights[0] = 0.0
    weights[0, 77] = 2e-38
    chosen = np.asarray(jax.jit(_pick)(weights, jnp.full(500, uniform, jnp.float32)))
    assert (weights[np.arange(500), chosen] > 0).all()
    assert chosen[0] == 77


def test_greedy_takes_the_first_largest():
    logits = np.random.default_rng(3).normal(size=(64, WIDTH)).astype(np.float32)
    logits[0, [7, 150, 299]] = 9.0
    logits[1, [299]] = 9.0
    logits[2, 128] = logits[2, 127] = 9.0
    rows = no_rows(64)
    assert np.asarray(choose(logits, rows).tokens).tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [1e-2, 1e-3, 1e-4, 1.1e-5])
def test_tiny_temperatures_are_greedy(temperature):
    logits = np.random.default_rng(4).normal(size=300) * 30
    assert set(samples(logits, temperature=temperature)) == {int(logits.argmax())}
    assert set(samples(logits + 1e4, temperature=temperature, top_p=0.9)) == {int(logits.argmax())}


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("column", [0, 140, 299])
def test_broken_logits_are_reported_and_hurt_nobody_else(value, column):
    logits = np.random.default_rng(5).normal(size=(64, WIDTH)).astype(np.float32)
    rows = rows_of(64)
    rows.temperature[::2] = 0
    rows.top_p[:] = 0.9
    good = choose(logits, rows)
    assert not np.asarray(good.bad).any()
    broken = logits.copy()
    broken[[4, 5], column] = value
    broken[[6, 7]] = -np.inf
    result = choose(broken, rows)
    bad = np.isin(np.arange(64), [4, 5, 6, 7])
    assert np.asarray(result.bad).tolist() == bad.tolist()
    assert (np.asarray(result.tokens)[bad] == 0).all()
    assert (np.asarray(result.tokens)[~bad] == np.asarray(good.tokens)[~bad]).all()


def varied_rows(count):
    """Every kind of row beside every other; the last array says which are beams."""
    random = np.random.default_rng(6)
    rows = rows_of(count)
    rows.key[:] = random.integers(0, 2**32, (count, 2), dtype=np.uint32)
    rows.child[:] = random.integers(0, 4, count)
    rows.temperature[:] = random.choice([0.0, 0.7, 1.0, 2.0], count)
    rows.top_k[:] = random.choice([0, 3, 50, 300], count)
    rows.top_p[:] = random.choice([1.0, 0.9, 0.3], count)
    rows.min_p[:] = random.choice([0.0, 0.01], count)
    rows.top_n_sigma[:] = random.choice([0.0, 1.0, 2.5], count)
    edits = no_edits(count, 1000, num_biases=4)
    edits.presence[:] = random.choice([0.0, 1.0], count)
    edits.repetition[:] = random.choice([1.0, 1.5], count)
    edits.slots[:] = random.integers(1, 5, count)
    edits.bias_ids[:, 0] = random.integers(0, 1000, count)
    edits.bias_values[:, 0] = random.choice([0.0, 5.0], count)
    edits.allowed[:] = np.where(
        random.random((count, 1)) < 0.5,
        np.uint32(0xFFFFFFFF),
        random.integers(0, 2**32, edits.allowed.shape, dtype=np.uint32),
    )
    logits = (random.normal(size=(count, 1000)) * 3).astype(np.float32)
    return logits, rows, edits, random.random(count) < 0.3


def test_a_row_depends_on_nothing_but_itself():
    rows = varied_rows(64)
    beams = rows[3]
    counts = empty_counts(5, 1000)
    random = np.random.default_rng(7)
    counts = counts._replace(
        output=jnp.asarray(random.poisson(0.2, counts.output.shape), jnp.int32),
        prompt=jnp.asarray(random.random(counts.prompt.shape) < 0.1),
    )

    @jax.jit
    def run(logits, rows, edits, beams):
        ends = jnp.full((logits.shape[0], 32), 0x10, jnp.uint32)
        return sample(logits, rows, edits, counts, 4, True, beams, ends, 8)

    together = run(*rows)
    expected = np.asarray(together.tokens)
    assert not np.asarray(together.bad).any()
    for size in (1, 16):
        for _ in range(8):
            which = random.choice(64, size, replace=False)
            part = jax.tree.map(lambda array: array[which], rows)  # noqa: B023
            result = run(*part)
            assert np.asarray(result.tokens).tolist() == expected[which].tolist()
            chosen = np.asarray(together.logprobs.chosen)[which]
            assert np.allclose(result.logprobs.chosen, chosen, atol=1e-5)
            assert (np.asarray(result.logprobs.rank) == together.logprobs.rank[which]).all()
            mine = beams[which]
            ids = np.asarray(together.candidates.ids)[which]
            assert (np.asarray(result.candidates.ids)[mine] == ids[mine]).all()
    none = run(*rows[:3], np.zeros(64, bool))
    others = ~beams
    assert (np.asarray(none.tokens)[others] == expected[others]).all()


def test_seed_child_and_position_each_change_the_draws():
    logits = np.zeros((64, WIDTH), np.float32)

    def tokens(**settings):
        return np.asarray(choose(logits, rows_of(64, **settings)).tokens).tolist()

    base = tokens()
    assert tokens() == base
    assert len(set(base)) > 50
    assert tokens(seed=8) != base
    assert tokens(seed=7 + 2**32) != base
    assert tokens(seed=7 - 2**64) == base
    assert tokens(child=1) != base
    assert tokens(position=np.arange(1, 65))[:-1] == base[1:]


def test_draws_of_children_are_independent():
    first = samples(np.zeros(8))
    second = samples(np.zeros(8), child=1)
    assert_distribution(first * 8 + second, np.full(64, 1 / 64))


def test_settings_are_normalised():
    assert row_settings(SamplingParams(top_k=2_000_000), 1000) == RowSettings(1.0)
    assert row_settings(SamplingParams(top_k=-1), 1000) == RowSettings(1.0)
    for off in (None, 0, -1, -2.5):
        assert row_settings(SamplingParams(top_n_sigma=off), 1000) == RowSettings(1.0)
    for greedy in ({"temperature": 1e-6}, {"top_k": 1}, {"top_p": 0.0}):
        params = SamplingParams(min_p=0.1, top_n_sigma=1, **greedy)
        assert row_settings(params, 1000) == RowSettings() == (0.0, 0, 1.0, 0.0, 0.0)
    params = SamplingParams(temperature=0.5, top_k=5, top_p=0.5, min_p=0.25, top_n_sigma=1.5)
    assert row_settings(params, 1000) == (0.5, 5, 0.5, 0.25, 1.5)


def test_neutral_rows_and_settings_agree():
    """A row that nothing is written to is a greedy one."""
    neutral = no_rows(3)
    for name, value in RowSettings()._asdict().items():
        assert (getattr(neutral, name) == value).all(), name
    words = row_words(RowSettings(0.5, 5, 0.25, 0.125, 1.5))
    assert words[1] == 5
    assert words[[0, 2, 3, 4]].view(np.float32).tolist() == [0.5, 0.25, 0.125, 1.5]


# Around zero, float32's smallest normal number, the greedy temperature, and one.
AT_THRESHOLDS = (0.0, 5e-324, 1e-46, 1e-45, 1.1e-38, 1.2e-38, 9.9999999e-6, 1e-5, 1 - 1e-9, 1.0)


@pytest.mark.parametrize("name", ["top_p", "min_p", "temperature"])
@pytest.mark.parametrize("value", AT_THRESHOLDS)
def test_host_and_device_decide_alike_at_every_threshold(name, value):
    """A threshold compared in double precision on the host and in float32 on the device."""
    params = SamplingParams(**{name: value})
    settings = row_settings(params, WIDTH)._asdict()
    seen = set(samples(np.linspace(0, 1, 8), **settings).tolist())
    assert params.greedy is (settings["temperature"] == 0)
    one_is_left = value > 0.99 if name == "min_p" else value <= 1e-5
    assert seen == ({7} if one_is_left else set(range(8)))


@pytest.mark.parametrize("value", [1e-46, 1e-300])
def test_a_penalty_that_is_zero_on_the_device_is_none(value):
    assert not SamplingParams(presence_penalty=value, frequency_penalty=-value).has_penalty
    assert not SamplingParams(repetition_penalty=1 + 1e-12).has_penalty
