"""Kind: work for one request that keeps the interpreter's lock, and so every stream, waiting.

What may take long is refused before it begins, or done without the lock. Whether a call lets go of
it is asked of the interpreter: with a switch interval of minutes another thread runs only when the
first one lets it.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxkv.engine.input_processor import InputProcessor
from paxkv.server.errors import BadRequest
from paxkv.server.limits import RequestLimits
from paxkv.server.middleware.http_protocol import READ_BYTES, PatientProtocol
from paxkv.server.middleware.size_limits import CONTAINER, ValueCount
from tests.server.tiny_server import TinyServer, chat, completion, lent_model, serving, tokenizer

COMPLETIONS = "/v1/completions"
JSON = {"Content-Type": "application/json"}
TEXT = "the cat sat on the mat, " * 8000


@pytest.fixture
def patient_interpreter() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)


def lets_others_run(work: Callable[[], object]) -> bool:
    """Whether another thread did something between the beginning and the end of `work`."""
    counted = [0]
    ended = threading.Event()

    def count() -> None:
        while not ended.is_set():
            counted[0] += 1
            time.sleep(0.0001)

    thread = threading.Thread(target=count)
    thread.start()
    time.sleep(0.01)
    before = counted[0]
    work()
    after = counted[0]
    ended.set()
    thread.join()
    return after > before + 1


@pytest.mark.usefixtures("patient_interpreter")
def test_tokenizing_lets_other_threads_run() -> None:
    found = tokenizer()
    assert not lets_others_run(lambda: json.dumps([1] * 300_000))  # what keeps the lock is seen
    assert lets_others_run(lambda: found.encode(TEXT))
    ids = found.encode(TEXT)
    assert lets_others_run(lambda: found.decode(ids))


@pytest.mark.parametrize(
    "text", ["", "the cat", "<|im_start|>the cat<|im_end|>", "今天 \n\n x", TEXT]
)
def test_ids_and_texts_are_the_same_as_before(text: str) -> None:
    found = tokenizer()
    for special in (False, True):
        ids = found.backend.encode(text, add_special_tokens=special).ids
        assert found.encode(text, special) == ids
        assert found.decode(ids, special) == found.backend.decode(ids, skip_special_tokens=special)


@pytest.mark.parametrize("wrong", [("a", "b"), ["a", "b"], None, 3, b"x", "\ud800"])
def test_what_is_no_text_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="text"):
        tokenizer().encode(wrong)  # type: ignore[arg-type]


def test_the_length_of_ids_is_checked_before_each_of_them() -> None:
    """Kind: work on all of an input that its length alone refuses."""

    class Ids(list[int]):
        def __iter__(self) -> Iterator[int]:
            raise AssertionError("each id is looked at")

    model = lent_model()
    input_processor = InputProcessor(model.engine, model.config, None)
    with pytest.raises(ValueError, match="max_model_len=512|maximum context length is 512"):
        input_processor._ids(Ids([5] * 100_000))


def values_in(value: object) -> int:
    """The count by its definition, from what was parsed."""
    if isinstance(value, dict):
        inner = sum(map(values_in, value.values())) + max(0, len(value) - 1)
        return CONTAINER * (1 + len(value)) + inner
    if isinstance(value, list):
        return CONTAINER + sum(map(values_in, value)) + max(0, len(value) - 1)
    return 0


TREES = st.recursive(
    st.one_of(st.none(), st.integers(), st.text('ab\\"[]{},:\n\u00e9')),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text('k\\",:{'), inner)),
)


@given(TREES, st.booleans(), st.lists(st.integers(0, 200)))
def test_values_are_counted_as_they_come(tree: object, ascii_only: bool, cuts: list[int]) -> None:
    """However the body is cut: within escapes, within characters, within names."""
    body = json.dumps(tree, ensure_ascii=ascii_only).encode()
    count = ValueCount()
    places = sorted({0, *(cut for cut in cuts if cut < len(body)), len(body)})
    for start, end in itertools.pairwise(places):
        count.add(body[start:end])
    assert count.count == values_in(tree)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_what_would_be_counted_wrong_is_refused(encoding: str) -> None:
    with pytest.raises(BadRequest, match="UTF-8"):
        ValueCount().add(json.dumps([1, 2]).encode(encoding))


MOST = 4 << 20
HOSTILE = {
    "lists": b"[],",
    "objects": b"{},",
    "fields": b'{"":0},',
    "numbers": b"1,",
    "fractions": b"1.5,",
}


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE)
def test_bodies_of_too_many_values_are_not_parsed(server: TinyServer, piece: bytes) -> None:
    body = b'{"prompt": [' + piece * ((MOST - 30) // len(piece)) + b"1]}"
    reply = server.post(COMPLETIONS, body, headers=JSON)
    assert reply.status == 413
    assert "max_body_values=500000" in reply.error["message"]


def test_large_bodies_of_text_and_ids_are_read(server: TinyServer) -> None:
    """What is long and not slow is refused for its length in tokens, not for its values."""
    for prompt in ('[{":,' * 600_000, "\\" * 1_900_000, '"' * 1_900_000, [12345] * 490_000):
        reply = server.post(COMPLETIONS, completion(prompt))
        assert reply.status == 400
        assert reply.error["param"] == "prompt"


@pytest.mark.parametrize("fields", [{"guided_choice": [1]}, {"tools": [1]}], ids=str)
def test_of_a_wrong_list_one_error_is_enough(
    server: TinyServer, fields: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pydantic would make an error of each of half a million items."""
    from fastapi.exceptions import RequestValidationError

    seen: list[int] = []
    make = RequestValidationError.__init__

    def note(self: RequestValidationError, errors: list[object], **more: object) -> None:
        seen.append(len(errors))
        make(self, errors, **more)

    monkeypatch.setattr(RequestValidationError, "__init__", note)
    ((name, wrong),) = fields.items()
    reply = server.post("/v1/chat/completions", chat(**{name: wrong * 400_000}))
    assert (reply.status, reply.error["param"]) == (400, name)
    assert seen == [1]


def test_what_is_parsed_at_once_is_little(
    server: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body may come in chunks of a byte each; between two reads it is the turn of others."""
    sizes: list[int] = []
    receive = PatientProtocol.data_received

    def note(self: PatientProtocol, data: bytes) -> None:
        sizes.append(len(data))
        receive(self, data)

    monkeypatch.setattr(PatientProtocol, "data_received", note)
    assert server.post(COMPLETIONS, completion("a" * 1_000_000)).status == 400
    assert sum(sizes) > 1_000_000
    assert max(sizes) <= READ_BYTES


def test_the_limit_of_values_is_an_option() -> None:
    with serving(limits=RequestLimits(max_body_values=100)) as server:
        assert server.post(COMPLETIONS, completion([5] * 20, max_tokens=1)).status == 200
        assert server.post(COMPLETIONS, completion([5] * 120, max_tokens=1)).status == 413
        server.wait_idle()
