"""The flags of every command that starts an engine."""

from __future__ import annotations

import argparse
from typing import Any

NOT_FLAGS = ("model", "tokenizer", "skip_tokenizer_init")


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--model`, `--tokenizer` and one flag for each field of `EngineConfig`."""
    from paxkv.cli.dataclass_flags import add_dataclass_flags
    from paxkv.engine.config import EngineConfig

    parser.add_argument(
        "--model",
        required=True,
        metavar="MODEL",
        help="a known name (smollm2-135m), a hub id, a Hugging Face directory or a .gguf file",
    )
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
    """Keyword arguments for `LLM`, all but the model."""
    from paxkv.cli.dataclass_flags import given_values
    from paxkv.engine.config import EngineConfig

    arguments = given_values(args, EngineConfig)
    for name in NOT_FLAGS:
        arguments.pop(name, None)
    if args.tokenizer is not None:
        arguments["tokenizer"] = args.tokenizer
    return arguments
