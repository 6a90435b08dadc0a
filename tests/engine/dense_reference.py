"""The decoder once more, in float64 numpy over whole sequences: no cache, no pages, no JAX."""

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
    scores = hidden @ _wide(params.get("head", params["embed"])).T
    return _capped(scores, config.final_logit_softcapping)


def hidden_states(
    params: dict[str, Any], config: ModelConfig, token_ids: list[int], kept: Kept = np.asarray
) -> np.ndarray:
    """Hidden states `[len(token_ids), hidden_size]` after the last norm.

    kept: what a cache makes of keys and values `[tokens, num_kv_heads, head_dim]`.
    """
    length = len(token_ids)
    x = _wide(params["embed"])[token_ids] * config.embedding_scale
    half = config.head_dim // 2
    frequencies = [rope.rope_theta ** (-np.arange(half) / half) for rope in config.ropes]
    distance = np.arange(length)[:, None] - np.arange(length)
    group = config.num_heads // config.num_kv_heads
    scale = config.attention_scale or config.head_dim**-0.5
    for layer, kind in zip(params["layers"], config.layers, strict=True):
        angle = np.arange(length)[:, None] * frequencies[kind.rope]
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        hidden = (distance < 0) | (distance >= (kind.window or length))
        h = _norm(x, layer["attn_norm"], config)
        qkv = _linear(layer, "qkv", h)
        q, k, v = np.split(qkv, [config.q_size, config.q_size + config.kv_size], axis=1)
        q = q.reshape(length, config.num_heads, -1)
        k = k.reshape(length, config.num_kv_heads, -1)
        if config.qk_norm:
            q, k = _norm(q, layer["q_norm"], config), _norm(k, layer["k_norm"], config)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        k = np.repeat(kept(k), group, axis=1)
        v = np.repeat(kept(v.reshape(length, config.num_kv_heads, -1)), group, axis=1)
        score = np.einsum("qhd,khd->hqk", q, k) * scale
        score = _capped(score, config.attn_logit_softcapping)
        score[:, hidden] = -np.inf
        weight = np.exp(score - score.max(-1, keepdims=True))
        weight /= weight.sum(-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", weight, v).reshape(length, -1)
        h = _linear(layer, "o", out)
        x = x + (_norm(h, layer["attn_post_norm"], config) if config.post_norms else h)
        h = _norm(x, layer["mlp_norm"], config)
        gate, up = np.split(_linear(layer, "gate_up", h), 2, axis=1)
        h = _linear(layer, "down", _activation(gate, config) * up)
        x = x + (_norm(h, layer["mlp_post_norm"], config) if config.post_norms else h)
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
    return (
        x
        / np.sqrt((x * x).mean(-1, keepdims=True) + config.rms_norm_eps)
        * (_wide(weight) + config.norm_unit_offset)
    )


def _linear(layer: dict[str, Any], name: str, x: np.ndarray) -> np.ndarray:
    return x @ _wide(layer[name]).T + _wide(layer.get(f"{name}_bias", 0.0))


def _activation(x: np.ndarray, config: ModelConfig) -> np.ndarray:
    if config.hidden_act == "silu":
        return x / (1 + np.exp(-x))
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _capped(scores: np.ndarray, cap: float | None) -> np.ndarray:
    return scores if cap is None else cap * np.tanh(scores / cap)


def _rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
