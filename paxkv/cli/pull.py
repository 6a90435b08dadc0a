"""`paxkv pull`: fetch a model once, so that later starts need no network."""

from __future__ import annotations

import argparse

from paxkv.cli.command_parser import CommandParser

SUMMARY = "fetch a model into the cache directory and print its path"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("model", metavar="NAME", help="a known name (smollm2-135m) or a hub id")
    parser.add_argument("--revision", help="branch, tag or commit of a hub id")


def run(args: argparse.Namespace) -> int:
    from convert import resolve

    print(resolve(args.model, revision=args.revision))
    return 0
