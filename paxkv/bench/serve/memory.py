"""Memory of a server's process on this machine."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

EVERY = 0.1


class PeakMemory:
    """The most resident memory a process had while this was sampling; Linux only.

    bytes: so far, 0 before the first sample. Raises ValueError if there is no such process.
    """

    def __init__(self, pid: int) -> None:
        self._file = Path(f"/proc/{pid}/status")
        self.bytes = 0
        if not self._file.is_file():
            raise ValueError(f"server_pid is {pid}; no such process can be seen here")

    async def sample(self) -> None:
        """Until cancelled, or until the process ends."""
        with suppress(OSError):
            while True:
                self.look()
                await asyncio.sleep(EVERY)

    def look(self) -> None:
        for line in self._file.read_text().splitlines():
            if line.startswith("VmRSS:"):
                self.bytes = max(self.bytes, 1024 * int(line.split()[1]))
