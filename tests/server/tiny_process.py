"""The tiny server as a process of its own, for signals. Run as a module, it is that process."""

from __future__ import annotations

import atexit
import logging
import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

from tests.server.tiny_server import Client

ROOT = Path(__file__).resolve().parents[2]


@cache
def _programs() -> Path:
    """Where the processes of a test run keep what they compile."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return Path(folder.name)


class TinyProcess:
    """A started server, by default ready to answer. log: what it wrote, once it has ended.

    temporary: where it may put temporary files.
    """

    def __init__(
        self,
        *arguments: str,
        port: int = 0,
        ready: bool = True,
        temporary: Path | None = None,
    ) -> None:
        environment = {"JAX_COMPILATION_CACHE_DIR": str(_programs()), **os.environ}
        if temporary is not None:
            temporary.mkdir(exist_ok=True)
            environment["TMPDIR"] = str(temporary)
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.tiny_process", str(port), *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=self._output,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.client = Client(self.port)
        until = time.monotonic() + 60
        while ready and not self._is_ready():
            assert self._process.poll() is None, self.log
            assert time.monotonic() < until
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        try:
            return self.client.get("/health").status == 200
        except OSError:
            return False

    @property
    def log(self) -> str:
        self._output.seek(0)
        return self._output.read()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, signal: int) -> None:
        self._process.send_signal(signal)

    def wait(self) -> int:
        return self._process.wait(20)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._output.close()


def main(port: int, options: list[str]) -> int:
    from paxkv.server.app import build_app
    from paxkv.server.running import listen, serve
    from tests.server.tiny_server import TinyModel

    logging.basicConfig(level="INFO")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if "--few-files" in options:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    if "--never-more-files" in options:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    socket = listen("127.0.0.1", port)
    print(socket.getsockname()[1], flush=True)
    model = TinyModel()
    if "--slow" in options:
        model.engine.runner.hooks.before_launch = lambda _: time.sleep(0.05)
    return serve(build_app(model, name="tiny"), [socket])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
