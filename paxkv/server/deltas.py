"""What a step added to a request that a client waits for."""

from __future__ import annotations

from dataclasses import dataclass, field

from paxkv.engine.request import Request
from paxkv.outputs import TokenLogprobs


@dataclass(slots=True)
class Piece:
    """New output of one sequence. finish_reason: None unless it was the last.

    request: whose it is. child: the sequence's index.
    """

    request: Request
    child: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
    finish_reason: str | None
    stop_reason: int | str | None


@dataclass(slots=True)
class Deltas:
    """New output of a request after a step.

    time: seconds of `time.monotonic`. num_tokens: sampled by all its sequences in this step.
    ended: the finish reason, None while it runs.
    """

    request: Request
    time: float
    num_tokens: int
    pieces: list[Piece] = field(default_factory=list)
    ended: str | None = None

    @property
    def first_token(self) -> float:
        """Time of the request's first token, once it has one; beams report it late."""
        first = self.request.first_token
        return self.time if first is None else first


class Watcher:
    """Follows one request in the engine's thread; reports each change once."""

    def __init__(self, request: Request, streaming: bool) -> None:
        self.request = request
        self._streaming = streaming
        self._sent: dict[int, int] = {}
        self._done: set[int] = set()
        self._num_tokens = 0

    def look(self, now: float) -> Deltas:
        """Return the changes since the last call."""
        request = self.request
        total = self._num_tokens
        if not request.is_beam_group or request.finished:  # beams come and go
            total = sum(len(s.token_ids) - request.num_prompt for s in request.sequences)
        deltas = Deltas(request, now, total - self._num_tokens)
        self._num_tokens = total
        if self._streaming:
            deltas.pieces = self._pieces()
        if request.finished:
            finish = request.sequences[0].finish
            assert finish is not None
            deltas.ended = finish.finish_reason
        return deltas

    def _pieces(self) -> list[Piece]:
        pieces = []
        for sequence in self.request.sequences:
            index, finish = sequence.index, sequence.finish
            sent = self._sent.get(index, self.request.num_prompt)
            if index in self._done or (finish is None and len(sequence.token_ids) == sent):
                continue
            self._sent[index] = len(sequence.token_ids)
            logprobs = sequence.logprobs
            if logprobs is not None:
                logprobs = logprobs[sent - self.request.num_prompt :]
            if finish is not None:
                self._done.add(index)
            pieces.append(
                Piece(
                    self.request,
                    index,
                    sequence.text.take_delta(),
                    sequence.token_ids[sent:],
                    logprobs,
                    finish.finish_reason if finish else None,
                    finish.stop_reason if finish else None,
                )
            )
        return pieces
