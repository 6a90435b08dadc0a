"""The Llama decoder once more, in float64 numpy over whole sequences: no cache, no pages, no
JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from paxkv.models.config import ModelConfig

Kept = Callable[[np.ndarray], np.ndarray]


def all_logits(
    params: dict[str, Any], config: ModelConfig, token_ids: list[int], kept: Kept = np.asarray
) -> np.ndarray:
    """Logits `[len(token_ids), vocab_size]` of a model without rope scaling."""
    hidden = hidden_states(params, config, token_ids, kept)
    return hidden @ _wide(params.get("head", params["embed"])).T


def hidden_states(
    params: dict[str, Any], config: ModelConfig, token_ids: list[int], kept: Kept = np.asarray
) -> np.ndarray:
    """Hidden states `[len(token_ids), hidden_size]` after the last norm.

    kept: what a cache makes of keys and values `[tokens, num_kv_heads, head_dim]`.
    """
    length = len(token_ids)
    x = _wide(params["embed"])[token_ids]
    half = config.head_dim // 2
    frequency = config.rope_theta ** (-np.arange(half) / half)
    angle = np.arange(length)[:, None] * frequency
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    distance = np.arange(length)[:, None] - np.arange(length)
    hidden = (distance < 0) | (distance >= (config.sliding_window or length))
    group = config.num_heads // config.num_kv_heads
    for layer in params["layers"]:
        h = _norm(x, layer["attn_norm"], config)
        qkv = h @ _wide(layer["qkv"]).T
        q, k, v = np.split(qkv, [config.q_size, config.q_size + config.kv_size], axis=1)
        q = _rotate(q.reshape(length, config.num_heads, -1), cos, sin)
        k = _rotate(k.reshape(length, config.num_kv_heads, -1), cos, sin)
        k = np.repeat(kept(k), group, axis=1)
        v = np.repeat(kept(v.reshape(length, config.num_kv_heads, -1)), group, axis=1)
        score = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(config.head_dim)
        score[:, hidden] = -np.inf
        weight = np.exp(score - score.max(-1, keepdims=True))
        weight /= weight.sum(-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", weight, v).reshape(length, -1)
        x = x + out @ _wide(layer["o"]).T
        h = _norm(x, layer["mlp_norm"], config)
        gate, up = np.split(h @ _wide(layer["gate_up"]).T, 2, axis=1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ _wide(layer["down"]).T
    return _norm(x, params["norm"], config)


def greedy(
    params: dict[str, Any], config: ModelConfig, prompt: list[int], count: int
) -> tuple[list[int], list[float]]:
    """`count` greedy tokens after `prompt`, and the gap between the two best logits at each."""
    ids, gaps = list(prompt), []
    for _ in range(count):
        scores = all_logits(params, config, ids)[-1]
        second, best = np.sort(scores)[-2:]
        ids.append(int(scores.argmax()))
        gaps.append(float(best - second))
    return ids[len(prompt) :], gaps


def logprobs(params: dict[str, Any], config: ModelConfig, token_ids: list[int]) -> np.ndarray:
    """Log-probabilities `[len(token_ids), vocab_size]` of what follows each position."""
    scores = all_logits(params, config, token_ids)
    scores -= scores.max(-1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(-1, keepdims=True))


def _wide(array: Any) -> np.ndarray:
    return np.asarray(array, np.float64)


def _norm(x: np.ndarray, weight: Any, config: ModelConfig) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + config.rms_norm_eps) * _wide(weight)


def _rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
