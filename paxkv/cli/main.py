"""Entry point of `paxkv`: picks the subcommand, turns errors into one sentence."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version

from paxkv.cli import bench, chat, generate, plan, pull, run_batch, serve, tune
from paxkv.cli.command_parser import CommandParser
from paxkv.cli.result_files import refuse_overwriting
from paxkv.cli.standard_streams import output_is_broken, prepare_streams
from paxkv.output_file import OutputError

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

EXIT_FAILED = 1
EXIT_REFUSED = 2
EXIT_INTERRUPTED = 130


def build_parser(command: str | None) -> CommandParser:
    """The parser; flags are laid out for `command` alone, since some need the engine's modules."""
    parser = CommandParser(
        prog="paxkv", description="Text generation from a paged KV cache, native to JAX."
    )
    parser.add_argument("--version", action="version", version=f"paxkv {version('paxkv')}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=module.SUMMARY, description=module.SUMMARY)
        if name == command:
            module.add_arguments(subparser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0 done, 1 failed (some of it, or its output could not be written), 2 refused
        (wrong arguments or input, no model), 130 interrupted.
    """
    prepare_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in arguments if word in COMMANDS), None)
    try:
        try:
            return _run(command, arguments)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        _say("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        output_is_broken()
        return 0  # the reader went away, with all it wanted
    except OutputError as error:
        _say(f"paxkv {command}: {error}")
        return EXIT_FAILED
    except OSError as error:
        if error.filename is not None:
            _say(f"paxkv {command}: {error.filename}: {error.strerror}")
            return EXIT_REFUSED
        if not output_is_broken():
            raise
        _say(f"paxkv: standard output cannot be written: {error.strerror}")
        return EXIT_FAILED


def _run(command: str | None, arguments: list[str]) -> int:
    args = build_parser(command).parse_args(arguments)
    try:
        refuse_overwriting(args)
        return COMMANDS[args.command].run(args)
    except Exception as error:
        if not _is_for_the_reader(error):
            raise
        _say(f"paxkv {args.command}: {args.parser.with_flags(str(error))}")
        return EXIT_REFUSED


def _say(text: str) -> None:
    with suppress(OSError):
        print(text, file=sys.stderr)


def _is_for_the_reader(error: Exception) -> bool:
    """Whether the message says it all; anything else is a fault and shows its traceback."""
    from convert.pull import PullError

    return isinstance(error, ValueError | PullError)


if __name__ == "__main__":
    sys.exit(main())
