"""Attention as the contract says it, one sequence and head at a time, in numpy float64.

Written from the contract, not from an implementation: it knows keys and values by position and has
never heard of pages.
"""

from __future__ import annotations

import numpy as np


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The last `count` positions of a sequence looking at all of it, causally.

    Args:
        q: `[count, num_heads, head_dim]`. k, v: `[length, num_kv_heads, head_dim]`.
        scale, window, softcap, sinks: as in the contract; sinks `[num_heads]`.

    Returns:
        Output `[count, num_heads, head_dim]` and log-sum-exp `[count, num_heads]`, float64.
    """
    count, num_heads, head_dim = q.shape
    length, num_kv_heads, _ = k.shape
    out = np.zeros((count, num_heads, head_dim))
    lse = np.full((count, num_heads), -np.inf)
    for head in range(num_heads):
        key_head = head // (num_heads // num_kv_heads)
        scores = scale * q[:, head].astype(np.float64) @ k[:, key_head].astype(np.float64).T
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        for index in range(count):
            position = length - count + index
            first = 0 if window is None else max(0, position - window + 1)
            row = scores[index, first : position + 1]
            logits = row if sinks is None else np.append(row, np.float64(sinks[head]))
            total = logits.max() + np.log(np.exp(logits - logits.max()).sum())
            values = v[first : position + 1, key_head].astype(np.float64)
            out[index, head] = np.exp(row - total) @ values
            lse[index, head] = total
    return out, lse
