"""`paxkv run-batch`: a file of requests in, a file of answers out."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from paxkv.cli.command_parser import CommandParser
from paxkv.cli.engine_flags import add_engine_flags, engine_arguments

SUMMARY = 'answer a file of requests (OpenAI\'s batch lines, or {"prompt": …})'
EXIT_SOME_FAILED = 1


def add_arguments(parser: CommandParser) -> None:
    parser.usage = "paxkv run-batch MODEL -i IN.jsonl -o OUT.jsonl [options]"
    parser.add_argument(
        "-i", "--input-file", required=True, metavar="FILE", help="a request per line"
    )
    parser.add_argument(
        "-o", "--output-file", required=True, metavar="FILE", help="a result per request, in order"
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep the results of a run that did not end"
    )
    parser.add_argument(
        "--served-model-name", metavar="NAME", help="of the model in the requests (as --model)"
    )
    parser.add_argument("--chat-template", metavar="TEXT", help="Jinja text, or the path of a file")
    parser.add_argument("--quiet", action="store_true", help="print no progress and no summary")
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    source, target = Path(args.input_file), Path(args.output_file)
    from paxkv.server.batch_file import check_files

    check_files(source, target, resume=args.resume)  # what cannot be is said before loading
    from paxkv.llm import LLM
    from paxkv.server.batch import run_batch

    summary = run_batch(
        LLM(args.model, **engine_arguments(args)),
        source,
        target,
        name=args.served_model_name or str(args.model),
        resume=args.resume,
        chat_template=args.chat_template,
        progress=not args.quiet,
    )
    if not args.quiet:
        print(
            f"{summary.answered} answered, {summary.failed} failed, {summary.resumed} kept from "
            f"an earlier run: {target}",
            file=sys.stderr,
        )
    return EXIT_SOME_FAILED if summary.failed else 0
