"""GrammarQueue: grammars waiting to be compiled."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from paxkv.sampling.structured_outputs import FormError, StructuredOutputsParams
from paxkv.server.errors import Overloaded
from paxkv.server.grammar.forms import refused_form
from paxkv.server.grammar.trial import GrammarTrial
from paxkv.text.grammar import Grammars


class NotCompiled(Exception):
    """A request's grammar has to be compiled before it can run."""

    def __init__(self, form: StructuredOutputsParams) -> None:
        super().__init__()
        self.form = form


class GrammarQueue:
    """Compiles one grammar after the other, in a thread of its own, since each may take its time.
    What is compiled already need not come here.

    check: raises the ApiError of a server that takes nothing new. seconds: that a grammar may
    take. most: that may wait or be compiled. max_wait: seconds.
    """

    def __init__(
        self,
        grammars: Grammars,
        check: Callable[[], None],
        *,
        seconds: float,
        most: int,
        max_wait: float,
    ) -> None:
        self._grammars = grammars
        self._check = check
        self._seconds = seconds
        self._most = most
        self._max_wait = max_wait
        self._trial = GrammarTrial(grammars, seconds)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._waiting: set[asyncio.Future[None]] = set()

    async def compile(self, form: StructuredOutputsParams) -> None:
        """Compile a grammar in its turn.

        Raises BadRequest if it cannot be compiled, Overloaded if too many wait or it waits too
        long, and what `check` raises if the server ends meanwhile.
        """
        self._check()
        if len(self._waiting) >= self._most:
            raise Overloaded(
                f"max_waiting_grammars={self._most} wait to be compiled already",
                code="queue_full",
                retry_after=math.ceil(self._seconds),
            )
        work = asyncio.get_running_loop().run_in_executor(self._thread, self._compile, form)
        self._waiting.add(work)
        try:
            async with asyncio.timeout(self._max_wait):
                await work
        except TimeoutError:
            raise Overloaded(
                f"no grammar was compiled within max_queue_wait={self._max_wait:g} seconds",
                code="queue_wait",
                retry_after=1,
            ) from None
        except asyncio.CancelledError:
            self._check()
            raise
        except FormError as error:
            raise refused_form(error, getattr(form, "sent_as", None)) from None
        finally:
            self._waiting.discard(work)

    def _compile(self, form: StructuredOutputsParams) -> None:
        if not self._grammars.has(form):
            self._trial.check(form)
            self._grammars.start(form)

    def refuse(self) -> None:
        """End all waits, after `check` has begun to raise."""
        for work in self._waiting:
            work.cancel()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._trial.close()
