"""`paxkv chat` and `generate` on a terminal: what a person sees."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAM = f"""
import sys, types
sys.path[:0] = [{str(HERE)!r}, {str(HERE.parents[1])!r}]
import fake_llm
module = types.ModuleType("paxkv.llm")
module.LLM = fake_llm.FakeLLM
sys.modules["paxkv.llm"] = module
from paxkv.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self._child, self._master = pty.fork()
        if self._child == 0:
            os.environ["TERM"] = "dumb"
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored in background processes
            os.execv(sys.executable, [sys.executable, "-c", PROGRAM, *arguments])
        self.seen = ""

    def shows(self, text: str, seconds: float) -> bool:
        """Whether it has shown `text` by then."""
        until = time.monotonic() + seconds
        while text not in self.seen:
            left = max(0.0, until - time.monotonic())
            if not select.select([self._master], [], [], left)[0]:
                return False
            self.seen += os.read(self._master, 4096).decode().replace("\r\n", "\n")
        return True

    def wait_for(self, text: str) -> None:
        assert self.shows(text, 30), self.seen

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        """Exit code, once all was read."""
        while True:
            try:
                piece = os.read(self._master, 4096)
            except OSError:
                piece = b""
            if not piece:
                break
            self.seen += piece.decode().replace("\r\n", "\n")
        os.close(self._master)
        return os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])


def test_ctrl_c_at_the_prompt_ends_its_line() -> None:
    """The next prompt stands at the beginning of a line, with --quiet too."""
    terminal = Terminal("chat", "--model", "m", "--quiet")
    terminal.wait_for("> ")
    terminal.type("half a line")
    terminal.wait_for("half a line")
    # A signal just before input() waits for a key is handled at the next one only.
    for _ in range(15):
        terminal.type("\x03")
        if terminal.shows("\n> ", 2):
            break
    terminal.wait_for("\n> ")
    terminal.type("hi\n")
    terminal.wait_for("paging is a table\n> ")
    terminal.type("\x04")
    assert terminal.end() == 0
    # What was typed may be shown twice, by the terminal and by the line editor.
    assert terminal.seen.rpartition("half a line")[2].replace("^C", "").startswith("\n> ")


def test_loading_is_shown() -> None:
    for quiet in (False, True):
        terminal = Terminal("generate", "--model", "m", *["--quiet"] * quiet, "hi")
        assert terminal.end() == 0
        assert ("loading m …\n" in terminal.seen) is not quiet
        assert "paging is a table\n" in terminal.seen
