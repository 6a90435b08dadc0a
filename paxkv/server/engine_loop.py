"""EngineLoop: the engine in its own thread, and its interface to asyncio."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol, TypeVar

from paxkv.engine.engine import Engine
from paxkv.engine.request import Request
from paxkv.server.deltas import Deltas, Watcher
from paxkv.server.errors import ApiError, DeadlineExceeded, Overloaded, Unavailable
from paxkv.server.middleware.backlog import Backlog
from paxkv.server.pending_request import PendingRequest

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Observer(Protocol):
    """Observer of requests and steps, called in the event loop's thread."""

    def arrived(self, request: Request) -> None: ...

    def stepped(self, num_tokens: int) -> None: ...

    def advanced(self, deltas: Deltas) -> None: ...

    def aborted(self, request: Request) -> None: ...


class EngineLoop:
    """Steps the engine while there is work, and passes each call its new output.

    Only the engine's thread touches the engine; other threads post functions that it runs between
    steps. One wake-up of the event loop carries all changes of a step, so HTTP work delays no
    step. Everything else here belongs to the event loop's thread.

    engine: stepped by this loop alone from `start` on.
    max_queue_wait: seconds a request may wait to be scheduled.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        backlog: Backlog,
        max_queue_wait: float,
    ) -> None:
        self.backlog = backlog
        self.observers: list[Observer] = []
        self.calls: set[PendingRequest] = set()
        self.draining = False
        self.fault: BaseException | None = None
        self.on_fault: Callable[[], None] = lambda: None
        self._engine = engine
        self._max_queue_wait = max_queue_wait
        self._owners: dict[str, PendingRequest] = {}
        self._waiting: set[str] = set()
        self._questions: set[asyncio.Future] = set()
        self._inbox: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._watchers: dict[str, Watcher] = {}
        self._added: list[Request] = []
        self._running = True
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread; call it within the event loop that it reports to."""
        self._loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread.start()

    # Requests

    def submit(
        self, requests: Sequence[Request], *, streaming: bool, deadline: float | None = None
    ) -> PendingRequest:
        """Queue the requests of a call, all or none.

        deadline: seconds from now. Raises ApiError if no work is accepted now.
        """
        self.check()
        self.backlog.enter(requests)
        call = PendingRequest(requests, streaming, self._close)
        self.calls.add(call)
        self._idle.clear()
        for request in requests:
            self._owners[request.request_id] = call
            self._waiting.add(request.request_id)
            for observer in self.observers:
                observer.arrived(request)
        self._inbox.put(lambda: self._add(call))
        call.timers.append(self._loop.call_later(self._max_queue_wait, self._waited, call))
        if deadline is not None:
            error = DeadlineExceeded(f"not finished within timeout={deadline:g} seconds")
            call.timers.append(self._loop.call_later(deadline, call.fail, error))
        return call

    def check(self) -> None:
        """Raise ApiError if new work would be refused."""
        if self.fault is not None:
            raise Unavailable("the engine has stopped", code="engine_dead")
        if self.draining:
            raise Unavailable("the server is shutting down", code="shutting_down", retry_after=5)

    def _waited(self, call: PendingRequest) -> None:
        waiting = [r for r in call.requests if r.request_id in self._waiting]
        if waiting:
            call.fail(
                Overloaded(
                    f"not started within max_queue_wait={self._max_queue_wait:g} seconds",
                    code="queue_wait",
                    retry_after=self.backlog.retry_after,
                )
            )

    def _close(self, call: PendingRequest) -> None:
        """Forget a call, and abort its unfinished requests."""
        if call not in self.calls:
            return
        self.calls.discard(call)
        for timer in call.timers:
            timer.cancel()
        left = [r for r in call.requests if r.request_id in call.unfinished]
        for request in call.requests:
            self._owners.pop(request.request_id, None)
            self._waiting.discard(request.request_id)
            self.backlog.leave(request)
        for request in left:
            for observer in self.observers:
                observer.aborted(request)
        if left:
            self._inbox.put(lambda: self._abort(left))
        if not self.calls:
            self._idle.set()

    def _stepped(self, num_tokens: int, deltas: list[Deltas], added: list[Request]) -> None:
        """added: requests that were new when the step was scheduled."""
        if num_tokens:
            for observer in self.observers:
                observer.stepped(num_tokens)
        self.backlog.stepped([item.request for item in deltas], added)
        self._deliver(deltas)

    def _deliver(self, deltas: list[Deltas]) -> None:
        for item in deltas:
            call = self._owners.get(item.request.request_id)
            if call is None:
                continue
            self._waiting.discard(item.request.request_id)
            if item.ended is not None:
                self.backlog.leave(item.request)
            for observer in self.observers:
                observer.advanced(item)
            call.take(item)

    # Looking at it

    async def ask(self, function: Callable[[Engine], T]) -> T:
        """Run `function` in the engine's thread between two steps; return its result."""
        self._check_alive()
        answer: asyncio.Future[T] = self._loop.create_future()
        self._questions.add(answer)
        answer.add_done_callback(self._questions.discard)

        def tell(value: T | None, error: BaseException | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(value)  # type: ignore[arg-type]

        def run() -> None:
            try:
                value = function(self._engine)
            except Exception as error:
                self._post(tell, None, error)
            else:
                self._post(tell, value, None)

        self._inbox.put(run)
        return await answer

    @property
    def stalled_for(self) -> float:
        """Seconds since the current step began."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def _check_alive(self) -> None:
        if self.fault is not None:
            raise Unavailable("the engine has stopped", code="engine_dead")

    # The end

    async def drain(self, seconds: float) -> None:
        """Refuse new work and let running requests end; abort those that take over `seconds`."""
        self.draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        self.fail_all(Unavailable("the server was shut down", code="shutting_down"))

    def fail_all(self, error: ApiError) -> None:
        for call in list(self.calls):
            call.fail(error)

    async def stop(self) -> None:
        """End the thread after the step it is in."""
        self._running = False
        self._inbox.put(lambda: None)
        await asyncio.to_thread(self._thread.join, 10)

    # The engine's thread

    def _run(self) -> None:
        try:
            settled = True
            while self._running:
                self._obey(wait=settled and not self._engine.has_work)
                if self._engine.has_work or not settled:
                    # One step after the last request lets what is in flight land.
                    settled = not self._engine.has_work
                    self._step()
        except BaseException as error:
            logger.critical("the engine has stopped", exc_info=error)
            self._post(self._died, error)

    def _obey(self, wait: bool) -> None:
        if wait:
            self._inbox.get()()
        while not self._inbox.empty():
            self._inbox.get()()

    def _step(self) -> None:
        engine = self._engine
        before = engine.num_steps
        added, self._added = self._added, []
        self._busy_since = time.monotonic()
        changed = engine.step()
        self._busy_since = None
        num_tokens = engine.tokens_per_step[-1] if engine.num_steps > before else 0
        now = time.monotonic()
        deltas = []
        for request in changed:
            watcher = self._watchers.get(request.request_id)
            if watcher is not None:
                deltas.append(watcher.look(now))
                if request.finished:
                    del self._watchers[request.request_id]
        if deltas or num_tokens or added:
            self._post(self._stepped, num_tokens, deltas, added)

    def _add(self, call: PendingRequest) -> None:
        for request in call.requests:
            watcher = Watcher(request, call.streaming)
            try:
                self._engine.add(request)
            except ValueError as error:
                request.error = str(error)
                request.end("error")
                self._post(self._deliver, [watcher.look(time.monotonic())])
            else:
                self._watchers[request.request_id] = watcher
                self._added.append(request)

    def _abort(self, requests: list[Request]) -> None:
        for request in requests:
            self._watchers.pop(request.request_id, None)
            self._engine.abort(request.request_id)

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the event loop has been closed
            self._loop.call_soon_threadsafe(function, *arguments)

    def _died(self, error: BaseException) -> None:
        self.fault = error
        dead = Unavailable("the engine has stopped", code="engine_dead")
        self.fail_all(dead)
        for question in self._questions:
            if not question.done():
                question.set_exception(dead)
        self.on_fault()
