"""The flags of every command that starts an engine, and JAX's share of the device by them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from paxkv.cli.command_parser import CommandParser, add_model_argument

FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
# The user has decided if one of these is set.
OTHERS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_ALLOCATOR")
BY_NUMBER = ("kv_cache_memory_bytes", "num_gpu_blocks_override")
MOST = 0.95
NOT_FLAGS = ("model", "tokenizer", "skip_tokenizer_init")


def add_engine_flags(parser: CommandParser, *, positional: bool = True) -> None:
    """Add MODEL, `--tokenizer` and one flag for each field of `EngineConfig`.

    positional: whether the model may be given without a flag.
    """
    from paxkv.cli.dataclass_flags import add_dataclass_flags
    from paxkv.engine.config import EngineConfig

    add_model_argument(parser, required=positional, positional=positional)
    parser.add_argument(
        "--tokenizer", metavar="PATH", help="take the tokenizer from here, not from the model"
    )
    parser.add_argument(
        "--use-v2-block-manager",
        action="store_true",
        help="accepted for old command lines; does nothing",
    )
    add_dataclass_flags(parser, EngineConfig, "engine", skip=NOT_FLAGS)


def engine_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments for `LLM`, all but the model; JAX gets its share of the device by them."""
    from paxkv.cli.dataclass_flags import given_values
    from paxkv.engine.config import EngineConfig

    arguments = given_values(args, EngineConfig)
    for name in NOT_FLAGS:
        arguments.pop(name, None)
    if args.tokenizer is not None:
        arguments["tokenizer"] = args.tokenizer
    set_share(arguments)
    return arguments


def set_share(engine_args: Mapping[str, Any]) -> None:
    """Let JAX have as much of the device as `gpu_memory_utilization` says, where it would take
    three quarters. A cache whose size is given by number gets what it needs, as it needs it.

    What the environment says already stays. JAX reads it when its first device is asked for.
    """
    from paxkv.engine.config import EngineConfig

    if any(name in os.environ for name in (FRACTION, *OTHERS)):
        return
    share = engine_args.get("gpu_memory_utilization", EngineConfig.gpu_memory_utilization)
    if any(engine_args.get(name) is not None for name in BY_NUMBER):
        os.environ.setdefault(PREALLOCATE, "false")
        share = MOST
    os.environ[FRACTION] = str(share)
