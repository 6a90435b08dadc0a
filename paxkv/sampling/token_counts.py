"""TokenCounts: which tokens a sequence has seen, on device, for the penalties."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class TokenCounts(NamedTuple):
    """One slot per sequence. Slot 0 belongs to nobody: padding reads and writes it.

    prompt: bool [slots, V], whether the prompt has the token. output: int32 [slots, V], how often
    the output has it. The functions below return a new TokenCounts and mean to be jitted with the
    old one donated.
    """

    prompt: jax.Array
    output: jax.Array


def empty_counts(num_slots: int, vocab_size: int) -> TokenCounts:
    """Slots 0 to `num_slots`, of which 1 and above can be given to sequences."""
    shape = (num_slots + 1, vocab_size)
    return TokenCounts(jnp.zeros(shape, jnp.bool_), jnp.zeros(shape, jnp.int32))


def reset_slots(counts: TokenCounts, slots: jax.Array) -> TokenCounts:
    """Forget everything in `slots` int32 [N]; pad with 0."""
    return TokenCounts(
        counts.prompt.at[slots].set(False, mode="promise_in_bounds"),
        counts.output.at[slots].set(0, mode="promise_in_bounds"),
    )


def add_prompt_tokens(counts: TokenCounts, slots: jax.Array, tokens: jax.Array) -> TokenCounts:
    """Note `tokens` [N] as prompt tokens of `slots` [N]; pad both with 0. Any chunking will do."""
    prompt = counts.prompt.at[slots, tokens].set(True, mode="promise_in_bounds")
    return counts._replace(prompt=prompt)


def add_output_tokens(counts: TokenCounts, slots: jax.Array, tokens: jax.Array) -> TokenCounts:
    """Count `tokens` [N] as output tokens of `slots` [N], repeats too; pad both with 0."""
    output = counts.output.at[slots, tokens].add(1, mode="promise_in_bounds")
    return counts._replace(output=output)


def copy_slots(counts: TokenCounts, sources: jax.Array, targets: jax.Array) -> TokenCounts:
    """targets [N] become copies of sources [N] (fork); pad with 0 to 0. No slot is both."""
    return TokenCounts(
        counts.prompt.at[targets].set(counts.prompt[sources], mode="promise_in_bounds"),
        counts.output.at[targets].set(counts.output[sources], mode="promise_in_bounds"),
    )
