"""What sampling means, in numpy float64 and by sorting; written apart from the product."""

from __future__ import annotations

import numpy as np


def softmax(logits: np.ndarray) -> np.ndarray:
    exponents = np.exp(logits - logits.max())
    return exponents / exponents.sum()


def kept(logits, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, top_n_sigma=0.0) -> np.ndarray:
    """Bool [V]: what top_n_sigma, min_p, top_k, then top_p leave; ties with the last kept stay."""
    logits = np.asarray(logits, np.float64)
    probabilities = softmax(logits / temperature)
    alive = probabilities >= min_p * probabilities.max()
    alive &= probabilities > 0
    if top_n_sigma > 0:
        possible = logits[logits > -np.inf]
        alive &= logits >= possible.max() - top_n_sigma * possible.std()
    if top_k and top_k < alive.sum():
        alive &= logits >= np.sort(logits[alive])[-top_k]
    if top_p < 1:
        values = np.unique(logits[alive])[::-1]
        total = probabilities[alive].sum()
        for value in values:
            above = probabilities[alive & (logits > value)].sum()
            if above >= top_p * total:
                alive &= logits > value
                break
    return alive


def distribution(logits, **filters) -> np.ndarray:
    alive = kept(logits, **filters)
    temperature = filters.get("temperature", 1.0)
    probabilities = np.where(alive, softmax(np.asarray(logits, np.float64) / temperature), 0.0)
    return probabilities / probabilities.sum()


def penalised(logits, prompt, output, *, presence=0.0, frequency=0.0, repetition=1.0):
    """Hugging Face's repetition penalty over prompt and output, OpenAI's over the output."""
    scores = np.array(logits, np.float64)
    for token in {*prompt, *output}:
        scores[token] = (
            scores[token] * repetition if scores[token] < 0 else scores[token] / repetition
        )
    for token in set(output):
        scores[token] -= frequency * output.count(token) + presence
    return scores
