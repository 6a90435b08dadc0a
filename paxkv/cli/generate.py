"""`paxkv generate`: complete prompts, or answer them through the model's chat template."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from paxkv.cli.command_parser import CommandParser
from paxkv.cli.engine_flags import add_engine_flags, engine_arguments
from paxkv.cli.standard_streams import announce_loading, read_input

if TYPE_CHECKING:
    from paxkv.llm import LLM
    from paxkv.sampling.sampling_params import SamplingParams

SUMMARY = "complete prompts (or answer them, with --chat) and stream the text"
MAX_TOKENS = 128
MOST_TOGETHER = 64


def add_arguments(parser: CommandParser) -> None:
    from paxkv.cli.sampling_flags import add_sampling_flags

    parser.usage = "paxkv generate MODEL [options] PROMPT [PROMPT ...]"
    parser.add_argument(
        "prompts",
        nargs="*",
        metavar="PROMPT",
        help="text to continue; '-' reads it from standard input; without --model the first "
        "word is the model",
    )
    parser.more_words = "prompts"
    parser.add_argument("--chat", action="store_true", help="put it through the chat template")
    parser.add_argument("--system", metavar="TEXT", help="system message, with --chat")
    parser.add_argument("--quiet", action="store_true", help="print no progress and no timing")
    add_sampling_flags(parser, temperature=0.0, max_tokens=MAX_TOKENS)
    add_engine_flags(parser, positional=False)


def run(args: argparse.Namespace) -> int:
    from paxkv.cli.sampling_flags import sampling_params

    if args.system is not None and not args.chat:
        raise ValueError("--system needs --chat")
    model, words = _model_and_words(args)
    prompts = [read_input() if word == "-" else word for word in words]
    params = sampling_params(args)
    announce_loading(model, args.quiet)
    from paxkv.llm import LLM

    # Room for these prompts and no more: fewer programs to compile before the first token.
    together = max(params.children, min(len(prompts) * params.children, MOST_TOGETHER))
    sized = {"max_num_seqs": together, **engine_arguments(args)}
    llm = LLM(model, **sized)
    requests = [_chat_request(llm, args.system, text) if args.chat else text for text in prompts]
    if len(requests) == 1 and params.n == 1 and not params.use_beam_search:
        _stream_one(llm, requests[0], params, args.quiet)
    else:
        _print_all(llm, prompts, requests, params, args.quiet)
    return 0


def _model_and_words(args: argparse.Namespace) -> tuple[str, list[str]]:
    """`--model M PROMPT …`, or `M PROMPT …`."""
    model, words = args.model, list(args.prompts)
    if model is None and words:
        model = words.pop(0)
    if model is None:
        args.parser.error("MODEL and PROMPT are missing")
    if not words:
        args.parser.error(f"PROMPT is missing: {model!r} is the model")
    return model, words


def _chat_request(llm: LLM, system: str | None, text: str) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": text})
    return {"prompt_token_ids": llm.get_tokenizer().apply_chat_template(messages)}


def _stream_one(llm: LLM, request: Any, params: SamplingParams, quiet: bool) -> None:
    from paxkv.cli.text_stream import print_stream

    answer = print_stream(llm.stream(request, params))
    if answer.interrupted:
        raise KeyboardInterrupt
    if not quiet:
        print(answer.describe(), file=sys.stderr)


def _print_all(
    llm: LLM, prompts: list[str], requests: list[Any], params: SamplingParams, quiet: bool
) -> None:
    """Generate several answers together, and print them under their prompts at the end."""
    for prompt, output in zip(prompts, llm.generate(requests, params, use_tqdm=not quiet)):
        for completion in output.outputs:
            number = f" [{completion.index}]" if params.n > 1 else ""
            print(f">>> {prompt.strip()}{number}\n{completion.text}\n")
