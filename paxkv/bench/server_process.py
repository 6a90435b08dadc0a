"""ServerProcess: `paxkv serve` as a child, for measuring."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from types import TracebackType

POLL = 0.2
GRACE = 30.0
SHOWN = 1500


def free_port() -> int:
    """A free TCP port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class ServerProcess:
    """Context manager of a server process that is ready on entering.

    flags: of `paxkv serve`, host and port apart. start_seconds: to wait until it is ready. Raises
    ValueError with the end of its log if it ends before, or is not ready by then.
    """

    def __init__(self, flags: Sequence[str], start_seconds: float = 900.0) -> None:
        self._flags = list(flags)
        self._start_seconds = start_seconds
        self.url = ""

    def __enter__(self) -> ServerProcess:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        command = [sys.executable, "-m", "paxkv.server", *self._flags]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT
        )
        try:
            self._wait()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _wait(self) -> None:
        until = time.monotonic() + self._start_seconds
        while not self._is_ready():
            if self._process.poll() is not None:
                raise ValueError(f"the server ended at its start: {self._tail()}")
            if time.monotonic() > until:
                raise ValueError(f"the server was not ready after {self._start_seconds:g} s")
            time.sleep(POLL)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as reply:
                return reply.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read()[-SHOWN:].strip()

    def _stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(GRACE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()
