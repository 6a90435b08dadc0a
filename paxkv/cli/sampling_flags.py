"""The flags of every command that samples text."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Any

from paxkv.cli.dataclass_flags import add_dataclass_flags, given_values
from paxkv.sampling.sampling_params import SamplingParams

# `seed` and `enable_prefix_caching` are engine flags of the same name; the others show nowhere.
NOT_FLAGS = {
    "seed",
    "enable_prefix_caching",
    "detokenize",
    "logprobs",
    "prompt_logprobs",
    "priority",
}


def add_sampling_flags(
    parser: argparse.ArgumentParser, skip: Collection[str] = (), **defaults: Any
) -> None:
    """Add one flag for each field of `SamplingParams` that makes sense on a terminal."""
    add_dataclass_flags(
        parser, SamplingParams, "sampling", skip=NOT_FLAGS.union(skip), defaults=defaults
    )


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The `SamplingParams` the flags ask for; ValueError as its constructor raises it."""
    values = given_values(args, SamplingParams)
    return SamplingParams(
        **{name: value for name, value in values.items() if name not in NOT_FLAGS}
    )
