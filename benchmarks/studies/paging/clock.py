"""A model of a device's time per step, for simulations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """A roofline: a step takes as long as its arithmetic or its memory traffic, whichever is more.

    The defaults are a 13-billion-parameter fp16 model on an A100 with 40 GB: weights_bytes read
    once a step, kv_bytes_per_token read for every cached token of every sequence, bandwidth in
    bytes/s, flops_per_token at flops_per_second (half of the peak of 312e12).
    """

    weights_bytes: float = 26e9
    kv_bytes_per_token: float = 819_200
    bandwidth: float = 1.555e12
    flops_per_token: float = 26e9
    flops_per_second: float = 156e12

    def seconds(self, num_tokens: int, num_cached: int) -> float:
        """One step that computes `num_tokens` and reads the cache of `num_cached`."""
        traffic = self.weights_bytes + self.kv_bytes_per_token * num_cached
        return max(
            traffic / self.bandwidth, num_tokens * self.flops_per_token / self.flops_per_second
        )
