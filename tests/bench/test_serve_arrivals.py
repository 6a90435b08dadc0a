"""Arrival times of `bench serve`."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paxkv.bench.serve.arrivals import ArrivalProcess


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_rate_and_the_spread_asked_for(burstiness: float) -> None:
    gaps = np.diff(ArrivalProcess(request_rate=20, burstiness=burstiness).times(20_001, 3))
    assert gaps.min() >= 0
    assert gaps.sum() == pytest.approx(20_000 / 20)
    variation = gaps.std() / gaps.mean()
    assert variation == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_poisson_gaps_are_exponential() -> None:
    gaps = np.diff(ArrivalProcess(request_rate=5, arrivals="poisson").times(20_001, 1))
    for share in (0.1, 0.5, 0.9):
        assert np.quantile(gaps, share) == pytest.approx(-math.log(1 - share) / 5, rel=0.05)


def test_fixed_gaps_are_equal() -> None:
    times = ArrivalProcess(request_rate=4, arrivals="fixed").times(9, 0)
    np.testing.assert_allclose(times, np.arange(9) / 4)


def test_without_a_rate_all_come_at_once() -> None:
    assert ArrivalProcess().times(5, 0).tolist() == [0.0] * 5


def test_the_seed_decides() -> None:
    process = ArrivalProcess(request_rate=3)
    np.testing.assert_array_equal(process.times(50, 7), process.times(50, 7))
    assert not np.array_equal(process.times(50, 7), process.times(50, 8))


@pytest.mark.parametrize(
    ("strategy", "middle"), [("linear", (2 + 18) / 2), ("exponential", math.sqrt(2 * 18))]
)
def test_the_rate_is_ramped_up(strategy: str, middle: float) -> None:
    process = ArrivalProcess(
        arrivals="fixed",
        ramp_up_strategy=strategy,  # type: ignore[arg-type]
        ramp_up_start_rps=2,
        ramp_up_end_rps=18,
    )
    rates = process.rates(101)
    assert (rates[0], rates[50], rates[100]) == pytest.approx((2, middle, 18))
    gaps = np.diff(process.times(101, 0))
    np.testing.assert_allclose(gaps, 1 / rates[1:])


@pytest.mark.parametrize("count", [0, 1])
def test_few_requests(count: int) -> None:
    assert ArrivalProcess(request_rate=1).times(count, 0).tolist() == [0.0] * count


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"request_rate": 0}, "request_rate"),
        ({"request_rate": math.nan}, "request_rate"),
        ({"burstiness": -1}, "burstiness"),
        ({"arrivals": "fixed", "burstiness": 2}, "burstiness"),
        ({"arrivals": "uniform"}, "arrivals"),
        ({"ramp_up_start_rps": 1}, "ramp_up_strategy"),
        ({"ramp_up_strategy": "linear", "ramp_up_start_rps": 1}, "ramp_up_end_rps"),
    ],
)
def test_wrong_options_are_named(options: dict, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        ArrivalProcess(**options)
