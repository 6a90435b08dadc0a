"""An engine in a child made by fork(): an error at once, where it would wait for ever."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from paxkv.engine.locking import EngineLock
from paxkv.llm import LLM
from tests.engine.tiny import CONFIG, Tiny, greedy, ids

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def llm() -> LLM:
    tiny = Tiny()
    made = LLM.__new__(LLM)
    made.model_config, made._tokenizer = CONFIG, None
    made.engine, made.input_processor = tiny.engine, tiny.input_processor
    made._lock = EngineLock(tiny.engine)
    made.generate([ids(5)], greedy(3), use_tqdm=False)
    return made


def in_child(act: Callable[[], object], seconds: int = 8) -> str:
    """What `act()` raises in a forked child; "hangs" if it does not end."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a process with threads is forked
        child = os.fork()
    if child == 0:
        try:
            act()
            said = "nothing"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], seconds)
    found = os.read(reader, 1 << 16).decode() if ready else "hangs"
    os.close(reader)
    if not ready:
        os.kill(child, 9)
    os.waitpid(child, 0)
    return found


CALLS: dict[str, Callable[[LLM], object]] = {
    "generate": lambda llm: llm.generate([ids(5)], greedy(3), use_tqdm=False),
    "stream": lambda llm: list(llm.stream(ids(5), greedy(3))),
    "stats": lambda llm: llm.stats(),
    "step": lambda llm: llm.engine.step(),
    "another": lambda llm: Tiny(num_gpu_blocks_override=50),
    "another by name": lambda llm: LLM("no/such/folder"),
}


@pytest.mark.parametrize("call", list(CALLS))
def test_a_forked_child_is_told(llm: LLM, call: str) -> None:
    said = in_child(lambda: CALLS[call](llm))
    assert said.startswith("RuntimeError: "), said
    assert 'get_context("spawn")' in said


def test_a_stream_that_a_child_inherits_is_the_parents(llm: LLM) -> None:
    """Closing the copy ends nothing and says nothing."""
    stream = llm.stream(ids(6), greedy(8))
    next(stream)
    assert in_child(stream.close) == "nothing"
    assert len(list(stream)[-1].outputs[0].token_ids) == 8


def test_jax_that_others_started_counts_too() -> None:
    program = (
        "import os, jax, paxkv\nfrom paxkv.llm import LLM\n"
        "if {started}: jax.numpy.zeros(3).block_until_ready()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try: LLM('no/such/folder')\n"
        "    except RuntimeError as error: os._exit(3 if 'spawn' in str(error) else 4)\n"
        "    except ValueError: os._exit(5)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", program.format(started=started)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        for started in (True, False)
    ]
    assert found == ["3", "5"]
