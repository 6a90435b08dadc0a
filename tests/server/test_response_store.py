"""ResponseStore: its bound, and what is left when responses go."""

from __future__ import annotations

from typing import Any

from paxkv.server.responses.store import ITEM_BYTES, OVERHEAD_BYTES, ResponseStore


def response_of(number: int, previous: str | None = None) -> dict[str, Any]:
    items = [{"id": f"msg_{number}", "text": "x" * 100}]
    return {"id": f"resp_{number}", "previous_response_id": previous, "output": items}


def test_the_store_is_bounded() -> None:
    """What it holds is counted to the byte, shared turns once, and all of it is given back."""
    store = ResponseStore(40 * (OVERHEAD_BYTES + ITEM_BYTES + 400))
    previous: str | None = None
    before: list[dict[str, Any]] = []
    for number in range(200):
        response = response_of(number, previous)
        new = [{"n": number, "text": "y" * 100}]
        store.add(b"a", response, new, before=before)
        assert store.num_bytes <= store._max_bytes
        before = store.conversation(b"a", response["id"]) or []
        assert [item["n"] for item in before] == list(range(number + 1))
        previous = response["id"]
    assert 20 < len(store) < 200
    assert store.get(b"a", "resp_0") is None
    assert store.item(b"a", "msg_0") is None
    assert store.item(b"a", "msg_199") == response_of(199)["output"][0]
    assert store.item(b"b", "msg_199") is None
    for number in range(200):
        store.delete(b"a", f"resp_{number}")
    assert (len(store), store.num_bytes, store._owners) == (0, 0, {})


def test_the_store_forgets_the_least_recently_used() -> None:
    store = ResponseStore(3 * (OVERHEAD_BYTES + ITEM_BYTES + 300))
    for number in range(3):
        store.add(b"a", response_of(number), [], before=[])
    assert store.get(b"a", "resp_0") is not None
    store.add(b"a", response_of(3), [], before=[])
    kept = [store.get(b"a", f"resp_{number}") is not None for number in range(4)]
    assert kept == [True, False, True, True]
    store.add(b"a", response_of(4, "resp_1"), [{"n": 4}], before=[{"n": 1}])
    assert store.conversation(b"a", "resp_4") == [{"n": 1}, {"n": 4}]
    ResponseStore(1).add(b"a", response_of(5), [], before=[])
