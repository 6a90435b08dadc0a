"""The flags of every command that starts an engine."""

from __future__ import annotations

import argparse
from typing import Any

from paxkv.cli.command_parser import CommandParser, add_model_argument
from paxkv.cli.jax_memory import set_share

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
