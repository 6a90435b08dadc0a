"""Entry point of `paxkv`: picks the subcommand, turns errors into one sentence."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from paxkv.cli import bench, chat, generate, plan, pull, run_batch, serve, tune

COMMANDS = {
    "pull": pull,
    "generate": generate,
    "chat": chat,
    "serve": serve,
    "run-batch": run_batch,
    "bench": bench,
    "tune": tune,
    "plan": plan,
}

EXIT_REFUSED = 2
EXIT_INTERRUPTED = 130


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser; flags are laid out for `command` alone, since some need the engine's modules."""
    parser = argparse.ArgumentParser(
        prog="paxkv", description="Text generation from a paged KV cache, native to JAX."
    )
    parser.add_argument("--version", action="version", version=f"paxkv {version('paxkv')}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        subparser = subparsers.add_parser(
            name, help=module.SUMMARY, description=module.SUMMARY, allow_abbrev=False
        )
        if name == command:
            module.add_arguments(subparser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0 done, 2 refused (wrong arguments or input, no model), 130 interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in arguments if word in COMMANDS), None)
    args = build_parser(command).parse_args(arguments)
    try:
        return COMMANDS[args.command].run(args)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader went away; the interpreter's own flush at exit must not fail on it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if not _is_for_the_reader(error):
            raise
        print(f"paxkv {args.command}: {error}", file=sys.stderr)
        return EXIT_REFUSED


def _is_for_the_reader(error: Exception) -> bool:
    """Whether the message says it all; anything else is a fault and shows its traceback."""
    from convert.pull import PullError

    return isinstance(error, ValueError | PullError)


if __name__ == "__main__":
    sys.exit(main())
