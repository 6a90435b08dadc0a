"""`paxkv plan`: how many requests a model and a memory hold."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from paxkv.cli.command_parser import CommandParser, add_model_argument

SUMMARY = "plan memory: bytes per token, blocks, requests held with and without paging"


def add_arguments(parser: CommandParser) -> None:
    from paxkv.capacity.plan import Question
    from paxkv.cli.dataclass_flags import add_dataclass_flags

    source = parser.add_mutually_exclusive_group()
    add_model_argument(source, required=False)
    source.add_argument("--config", type=Path, metavar="FILE", help="a Hugging Face config.json")
    add_dataclass_flags(parser, Question, "plan")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(args: argparse.Namespace) -> int:
    from paxkv.capacity.plan import Question, make_plan
    from paxkv.capacity.table import plan_as_json, print_plan
    from paxkv.cli.dataclass_flags import given_values

    plan = make_plan(Question(**given_values(args, Question)), _config(args))
    if args.json:
        import json

        print(json.dumps(plan_as_json(plan), indent=2))
    else:
        print_plan(plan)
    return 0


def _config(args: argparse.Namespace) -> Any:
    """The model's configuration, or None where the command line names no model."""
    if args.model is not None:
        from convert import open_checkpoint

        return open_checkpoint(args.model).config
    if args.config is not None:
        from convert.hf_config import hf_config, read_json

        return hf_config(read_json(args.config), args.config)
    return None
