"""`python -m benchmarks.studies`: what paging, scheduling options and caching gain and cost."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.studies import beams, block_size, policies, prefix
from benchmarks.studies.paging import command as paging
from convert.pull import PullError
from paxkv.cli.command_parser import CommandParser
from paxkv.cli.result_files import refuse_overwriting
from paxkv.output_file import OutputError

STUDIES = {
    "paging": paging,
    "beams": beams,
    "prefix": prefix,
    "policies": policies,
    "block-size": block_size,
}
EXIT_FAILED = 1
EXIT_REFUSED = 2


def build_parser() -> CommandParser:
    parser = CommandParser(prog="python -m benchmarks.studies", description=__doc__)
    studies = parser.add_subparsers(dest="study", required=True, metavar="STUDY")
    for name, module in STUDIES.items():
        study = studies.add_parser(name, help=module.SUMMARY, description=module.SUMMARY)
        module.add_arguments(study)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one study.

    Returns:
        The exit code: 0 done, 1 its output could not be written, 2 arguments or input refused.
    """
    args = build_parser().parse_args(arguments)
    try:
        refuse_overwriting(args)
        STUDIES[args.study].run(args)
    except OutputError as error:
        print(f"studies {args.study}: {error}", file=sys.stderr)
        return EXIT_FAILED
    except (ValueError, PullError) as error:
        print(f"studies {args.study}: {args.parser.with_flags(str(error))}", file=sys.stderr)
        return EXIT_REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
