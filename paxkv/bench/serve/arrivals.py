"""When requests arrive."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Arrivals = Literal["gamma", "poisson", "fixed"]
Ramp = Literal["linear", "exponential"]


@dataclass(frozen=True)
class ArrivalProcess:
    """Gaps between requests at a mean rate, which may grow from one request to the next.

    Attributes:
        request_rate: requests a second on average; inf sends all at once.
        arrivals: gamma, poisson (gamma with burstiness 1), or fixed (equal gaps).
        burstiness: shape of the gamma distribution, that is 1 / (coefficient of variation)²:
            below 1 requests come in bursts, above 1 more evenly.
        ramp_up_strategy: the rate goes from ramp_up_start_rps to ramp_up_end_rps, linear or
            exponential over the requests; then request_rate is not used.
    """

    request_rate: float = math.inf
    arrivals: Arrivals = "gamma"
    burstiness: float = 1.0
    ramp_up_strategy: Ramp | None = None
    ramp_up_start_rps: float | None = None
    ramp_up_end_rps: float | None = None

    def __post_init__(self) -> None:
        for name in ("request_rate", "burstiness"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must be above 0")
        if self.arrivals not in ("gamma", "poisson", "fixed"):
            raise ValueError(f"arrivals is {self.arrivals!r}, must be gamma, poisson or fixed")
        if self.arrivals != "gamma" and self.burstiness != 1:
            raise ValueError(f"burstiness is {self.burstiness}; it needs arrivals=gamma")
        ends = (self.ramp_up_start_rps, self.ramp_up_end_rps)
        if self.ramp_up_strategy is None:
            if ends != (None, None):
                raise ValueError("ramp_up_start_rps and ramp_up_end_rps need ramp_up_strategy")
        elif any(end is None or not 0 < end < math.inf for end in ends):
            raise ValueError(
                f"ramp_up_strategy={self.ramp_up_strategy} needs ramp_up_start_rps and "
                f"ramp_up_end_rps above 0, not {ends[0]} and {ends[1]}"
            )

    def as_json(self) -> dict[str, Any]:
        """Its fields; JSON has no infinity, so that rate is a word."""
        rate = self.request_rate if math.isfinite(self.request_rate) else "inf"
        return {**asdict(self), "request_rate": rate}

    def rates(self, count: int) -> NDArray[np.float64]:
        """Requests a second at each of `count` requests."""
        if self.ramp_up_strategy is None:
            return np.full(count, self.request_rate)
        assert self.ramp_up_start_rps is not None
        assert self.ramp_up_end_rps is not None
        progress = np.arange(count) / max(1, count - 1)
        start, end = self.ramp_up_start_rps, self.ramp_up_end_rps
        if self.ramp_up_strategy == "linear":
            return start + (end - start) * progress
        return start * (end / start) ** progress

    def times(self, count: int, seed: int) -> NDArray[np.float64]:
        """Seconds from the start at which each of `count` requests is sent; the first at once.

        At one rate they are stretched to last as long as the rate says, so that a short run has
        the load that was asked for.
        """
        rates = self.rates(count)
        if not np.all(np.isfinite(rates)):
            return np.zeros(count)
        gaps = 1 / rates[1:]
        if self.arrivals != "fixed":
            random = np.random.default_rng(seed)
            drawn = random.gamma(self.burstiness, 1 / self.burstiness, len(gaps))
            expected = gaps.sum()
            gaps = gaps * drawn
            if gaps.sum() > 0:
                gaps *= expected / gaps.sum()
        return np.concatenate([np.zeros(min(1, count)), np.cumsum(gaps)])
