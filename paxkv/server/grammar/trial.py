"""GrammarTrial: compiles a grammar in a separate process first, where it can do no harm."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import threading
from collections import OrderedDict
from contextlib import suppress
from hashlib import sha256
from typing import Any

from paxkv.sampling.structured_outputs import FormError, FormSource, StructuredOutputsParams
from paxkv.text.grammar import Grammars

START_SECONDS = 60.0
REMEMBERED = 1024


class GrammarTrial:
    """Compiles grammars in a process of its own before the engine does, and ends that process
    when one takes too long; a schema of a few hundred bytes can take for ever. Safe in threads.

    grammars: whose vocabulary is used. seconds: that one may take.
    """

    def __init__(self, grammars: Grammars, seconds: float) -> None:
        self._grammars = grammars
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._passed: OrderedDict[bytes, None] = OrderedDict()

    def check(self, form: StructuredOutputsParams) -> None:
        """Raise FormError if the form cannot be compiled, or not in time."""
        source = form.source()
        key = sha256(json.dumps(source).encode()).digest()
        with self._lock:
            if key in self._passed:
                self._passed.move_to_end(key)
                return
            reason = self._try(source)
            if reason:
                raise FormError(form.kind, reason)
            self._passed[key] = None
            if len(self._passed) > REMEMBERED:
                self._passed.popitem(last=False)

    def _try(self, form: FormSource) -> str:
        """The fault of a grammar, empty without one."""
        try:
            if self._process is None or self._process.poll() is not None:
                self.close()
                self._start()
            return str(self._ask(form, self._seconds))
        except TimeoutError:
            self.close()
            return f"takes longer than max_grammar_seconds={self._seconds:g} to compile"
        except (OSError, ValueError):
            self.close()
            return "cannot be compiled: it is too large"

    def _start(self) -> None:
        command = [sys.executable, "-m", "paxkv.text.grammar_process"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._ask({**self._grammars.vocabulary(), "seconds": self._seconds}, START_SECONDS)

    def _ask(self, question: Any, seconds: float) -> Any:
        """Ask the process. Raises TimeoutError, or ValueError or OSError if it has ended."""
        process = self._process
        assert process is not None
        pipe_in, pipe_out = process.stdin, process.stdout
        assert pipe_in is not None
        assert pipe_out is not None
        pipe_in.write(json.dumps(question).encode() + b"\n")
        pipe_in.flush()
        if not select.select([pipe_out], [], [], seconds)[0]:
            raise TimeoutError
        return json.loads(pipe_out.readline())

    def close(self) -> None:
        """End the process, whatever it does."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):  # of what it has not read
                        pipe.close()
