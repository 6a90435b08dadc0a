"""ResponseStore: answers of /v1/responses, kept in memory for later requests."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

Items = list[dict[str, Any]]

OVERHEAD_BYTES = 1024  # of an entry's objects, about
ITEM_BYTES = 256


@dataclass(eq=False)
class _Turn:
    """Items that one response added to its conversation. users: the response and later turns."""

    items: bytes
    previous: _Turn | None
    users: int = 0


@dataclass(eq=False)
class _Entry:
    response: bytes
    turn: _Turn
    item_ids: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        return len(self.response) + OVERHEAD_BYTES + ITEM_BYTES * len(self.item_ids)


class ResponseStore:
    """Stores responses and their conversations, separately for each caller.

    Consecutive responses share the turns of their conversation, and a turn stays as long as one of
    them does: deleting or evicting a response leaves those that continue it intact. Beyond
    `max_bytes` the least recently used responses are evicted. Thread-safe.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._entries: OrderedDict[tuple[bytes, str], _Entry] = OrderedDict()
        self._owners: dict[tuple[bytes, str], _Entry] = {}  # by item
        self._lock = Lock()

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, owner: bytes, response_id: str) -> bytes | None:
        """A response as JSON, None if there is none for this caller."""
        with self._lock:
            entry = self._used(owner, response_id)
            return None if entry is None else entry.response

    def conversation(self, owner: bytes, response_id: str) -> Items | None:
        """All items up to a response and of it, without any instructions."""
        turns: list[bytes] = []
        with self._lock:
            entry = self._used(owner, response_id)
            if entry is None:
                return None
            turn: _Turn | None = entry.turn
            while turn is not None:
                turns.append(turn.items)
                turn = turn.previous
        return [item for items in reversed(turns) for item in json.loads(items)]

    def item(self, owner: bytes, item_id: str) -> dict[str, Any] | None:
        """An output item of a response that is kept."""
        with self._lock:
            entry = self._owners.get((owner, item_id))
        if entry is None:
            return None
        return next(i for i in json.loads(entry.response)["output"] if i["id"] == item_id)

    def add(
        self,
        owner: bytes,
        response: dict[str, Any],
        new: Items,
        *,
        before: Items,
    ) -> None:
        """Store a response.

        new: the items of its turn. before: those of the conversation that it continues, stored
        again only if `previous_response_id` is no longer there.
        """
        content = _encoded(response)
        previous_id = response["previous_response_id"]
        key = (owner, response["id"])
        with self._lock:
            previous = self._entries.get((owner, previous_id)) if previous_id else None
            turn = _Turn(
                _encoded(new if previous is not None else [*before, *new]),
                None if previous is None else previous.turn,
            )
            entry = _Entry(content, turn, tuple(item["id"] for item in response["output"]))
            self._hold(turn)
            if turn.previous is not None:
                turn.previous.users += 1
            self._entries[key] = entry
            self._num_bytes += entry.num_bytes
            for item_id in entry.item_ids:
                self._owners[owner, item_id] = entry
            while self._num_bytes > self._max_bytes:
                self._remove(next(iter(self._entries)))

    def delete(self, owner: bytes, response_id: str) -> bool:
        """Delete a response; False if there was none."""
        with self._lock:
            found = (owner, response_id) in self._entries
            if found:
                self._remove((owner, response_id))
            return found

    def _used(self, owner: bytes, response_id: str) -> _Entry | None:
        key = (owner, response_id)
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def _hold(self, turn: _Turn) -> None:
        turn.users = 1
        self._num_bytes += len(turn.items)

    def _remove(self, key: tuple[bytes, str]) -> None:
        entry = self._entries.pop(key)
        self._num_bytes -= entry.num_bytes
        for item_id in entry.item_ids:
            del self._owners[key[0], item_id]
        turn: _Turn | None = entry.turn
        while turn is not None:
            turn.users -= 1
            if turn.users:
                break
            self._num_bytes -= len(turn.items)
            turn = turn.previous


def _encoded(value: dict[str, Any] | Sequence[dict[str, Any]]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
