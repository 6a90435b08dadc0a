"""`paxkv chat`: a conversation on the terminal."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from paxkv.cli.command_parser import CommandParser
from paxkv.cli.engine_flags import add_engine_flags, engine_arguments
from paxkv.cli.standard_streams import announce_loading, read_line

if TYPE_CHECKING:
    from paxkv.llm import LLM
    from paxkv.sampling.sampling_params import SamplingParams

SUMMARY = "talk to a model on the terminal"
HELP = "/reset forgets the conversation, /exit (or Ctrl-D) leaves, Ctrl-C stops an answer"
MAX_TOKENS = 512
MANY_ANSWERS = ("n", "best_of", "use_beam_search", "length_penalty", "early_stopping")


def add_arguments(parser: CommandParser) -> None:
    from paxkv.cli.sampling_flags import add_sampling_flags

    parser.usage = "paxkv chat MODEL [options]"
    parser.add_argument("--system", metavar="TEXT", help="system message to start with")
    parser.add_argument("--quiet", action="store_true", help="print no greeting and no timing")
    add_sampling_flags(parser, skip=MANY_ANSWERS, temperature=0.2, top_p=0.9, max_tokens=MAX_TOKENS)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    from paxkv.cli.sampling_flags import sampling_params

    params = sampling_params(args)
    announce_loading(args.model, args.quiet)
    from paxkv.llm import LLM

    llm = LLM(args.model, **{"max_num_seqs": 1, **engine_arguments(args)})
    Conversation(llm, params, args.system, args.quiet).run()
    return 0


class Conversation:
    """Reads lines, streams answers, keeps the messages.

    Args:
        llm: the engine to ask.
        params: sampling of every answer.
        system: text of a system message, or None.
        quiet: leave out greeting and timing, which go to standard error.
    """

    def __init__(
        self, llm: LLM, params: SamplingParams, system: str | None = None, quiet: bool = False
    ) -> None:
        self._llm = llm
        self._params = params
        self._system = system
        self._quiet = quiet
        self._messages: list[dict[str, str]] = []
        self._reset()

    def run(self) -> None:
        """Talk until /exit or the end of the input."""
        self._note(HELP)
        while True:
            try:
                line = _read_line()
            except KeyboardInterrupt:
                print(file=sys.stderr)  # the prompt's line ends, whatever was typed on it
                self._note(HELP)
                continue
            if line is None or line in ("/exit", "/quit"):
                return
            if line == "/reset":
                self._reset()
                self._note("conversation forgotten")
            elif line.startswith("/"):
                self._note(HELP)
            elif line:
                self._answer(line)

    def _reset(self) -> None:
        self._messages = []
        if self._system is not None:
            self._messages.append({"role": "system", "content": self._system})

    def _answer(self, text: str) -> None:
        from paxkv.cli.text_stream import print_stream

        self._messages.append({"role": "user", "content": text})
        try:
            ids = self._llm.get_tokenizer().apply_chat_template(self._messages)
            answer = print_stream(self._llm.stream({"prompt_token_ids": ids}, self._params))
        except ValueError as error:
            # A conversation too long for the model: the question is taken back, the rest stands.
            self._messages.pop()
            print(f"{error} (/reset starts over)", file=sys.stderr)
            return
        self._messages.append({"role": "assistant", "content": answer.text})
        self._note("stopped" if answer.interrupted else answer.describe())

    def _note(self, text: str) -> None:
        if not self._quiet:
            print(text, file=sys.stderr)


def _read_line() -> str | None:
    """One stripped line, or None at the end of the input."""
    if not sys.stdin.isatty():
        return read_line()
    with suppress(ImportError):
        import readline  # noqa: F401  (importing it gives input() editing and history)
    try:
        return input("> ").strip()
    except EOFError:
        print(file=sys.stderr)
        return None
