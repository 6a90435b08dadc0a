"""The sequences of beam searches: how they follow their beams, and come back after preemption."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from paxkv.engine.request import Request, Sequence
from paxkv.memory import Admission, BlockManager


@dataclass(slots=True)
class Regrouping:
    """What becomes of the rows of several searches after a step of each.

    forks: (parent, child) pairs; each child's row becomes a copy of its parent's, all read first.
    born: children without a row as yet. ended: sequences that no beam is left for.
    """

    forks: list[tuple[Sequence, Sequence]] = field(default_factory=list)
    born: list[Sequence] = field(default_factory=list)
    ended: list[Sequence] = field(default_factory=list)


def advance(requests: Iterable[Request]) -> Regrouping:
    """A step of every search, all of whose beams have been drawn."""
    regrouping = Regrouping()
    for request in requests:
        _advance(request, regrouping)
    return regrouping


def _advance(request: Request, regrouping: Regrouping) -> None:
    search, before = request.search, request.sequences
    assert search is not None
    ids, logprobs = zip(*(s.candidates for s in before if s.candidates is not None))
    parents = search.step(np.stack(ids), np.stack(logprobs))
    for sequence in before:
        sequence.candidates = None
    if search.done:
        regrouping.ended += before
        request.end("length")
        return
    regrouping.ended += before[len(parents) :]
    request.sequences = before[: len(parents)]
    histories = [before[parent].token_ids for parent in parents]
    for place, parent in enumerate(parents):
        if place >= len(before):
            before[0].child(place)
            regrouping.born.append(request.sequences[place])
        if place != parent:
            regrouping.forks.append((before[parent], request.sequences[place]))
            histories[place] = histories[place].copy()
    for sequence, history, output in zip(request.sequences, histories, search.outputs):
        history.append(output[-1])
        sequence.token_ids = history


def set_origins(request: Request, block_size: int) -> None:
    """Note which leading blocks each beam shares, and with which beam before it.

    Sequences that computed one history share the pages of its full blocks. Those that are given
    their rows by `join` share them again, whatever the prefix cache has kept.
    """
    known = np.array([sequence.token_ids for sequence in request.sequences])
    for place, sequence in enumerate(request.sequences):
        differs = known[:place] != known[place]
        common = np.argmax(differs, axis=1) // block_size
        sequence.origin = None
        if common.max(initial=0):
            sequence.origin = (request.sequences[int(common.argmax())], int(common.max()))


def blocks_in_all(request: Request, block_size: int) -> int:
    """Pages that all beams hold once what is known of them is computed, shared ones once."""
    shared = sum(origin[1] for s in request.sequences if (origin := s.origin) is not None)
    each = -(-len(request.sequences[0].token_ids) // block_size)
    return each * len(request.sequences) - shared


def join(sequence: Sequence, most: int, memory: BlockManager) -> Admission | None:
    """A row for a preempted beam beside the one it shares blocks with, and slots for at most
    `most` tokens after them; None if there is no room."""
    assert sequence.origin is not None
    beside, num_blocks = sequence.origin
    cached = num_blocks * memory.block_size
    new = min(len(sequence.token_ids) - cached, most)
    if -(-new // memory.block_size) > memory.num_free_blocks:
        return None
    assert beside.row is not None
    row = memory.fork_blocks(beside.row, num_blocks)
    if row is None:
        return None
    memory.append(row, new)
    return Admission(row, cached, new)
