"""Bug bank, over HTTP: chat templates."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tokenizers
from tokenizers.processors import TemplateProcessing

from paxkv.server.app import build_app
from paxkv.server.settings import ServerSettings
from tests.server.tiny_server import TEMPLATE, TinyModel, TinyServer, chat, completion, serving
from tests.text.small_tokenizers import byte_level

TURNS = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "the cat"},
    {"role": "assistant", "content": "sat"},
    {
        "role": "user",
        "content": [{"type": "text", "text": "on the"}, {"type": "text", "text": "mat"}],
    },
]
RENDERED = (
    "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nthe cat<|im_end|>\n"
    "<|im_start|>assistant\nsat<|im_end|>\n<|im_start|>user\non the\nmat<|im_end|>\n"
    "<|im_start|>assistant\n"
)


def test_ct_01_no_template() -> None:
    model = TinyModel(template=None)
    with serving(model) as server:
        reply = server.post("/v1/chat/completions", chat())
        assert reply.status == 400
        assert "chat template" in reply.error["message"]
        assert server.post("/v1/completions", completion()).status == 200
        server.wait_idle()
    with pytest.raises(ValueError, match="chat_template"):
        build_app(model, ServerSettings(chat_template="{% bad"))
    with serving(model, ServerSettings(chat_template=TEMPLATE)) as server:
        assert server.post("/v1/chat/completions", chat()).status == 200
        server.wait_idle()
    assert model.get_tokenizer().chat_template is None, "a server's template is its own"


@pytest.fixture(scope="module")
def adds_bos() -> Iterator[TinyServer]:
    """A server whose tokenizer puts id 0 before every text of its own accord."""
    model = TinyModel(max_num_seqs=4)
    backend = tokenizers.Tokenizer.from_str(byte_level().to_str())
    backend.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    model.get_tokenizer().backend = backend
    with serving(model) as server:
        yield server


def test_ct_02_the_same_ids_everywhere(adds_bos: TinyServer) -> None:
    """Control tokens are single ids, and none is added to what the template wrote."""
    ids = adds_bos.post("/tokenize", {"messages": TURNS}).json()["tokens"]
    assert adds_bos.post("/detokenize", {"tokens": ids}).json()["prompt"] == RENDERED
    assert (ids.count(0), ids.count(1), ids.count(2)) == (0, 5, 4)
    body = chat(messages=TURNS, return_token_ids=True)
    found = adds_bos.post("/v1/chat/completions", body).json()
    assert found["prompt_token_ids"] == ids
    assert found["usage"]["prompt_tokens"] == len(ids)


def test_ct_02_plain_texts_keep_the_tokenizers_own(adds_bos: TinyServer) -> None:
    ids = adds_bos.post("/tokenize", {"prompt": "the cat"}).json()["tokens"]
    assert ids[0] == 0
    body = completion("the cat", return_token_ids=True)
    found = adds_bos.post("/v1/completions", body).json()
    assert found["choices"][0]["prompt_token_ids"] == ids


def test_templates_come_from_the_model_alone(server: TinyServer) -> None:
    for fields in (
        {"chat_template": "{{ 1 }}"},
        {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
        {"chat_template_kwargs": {"template": "{{ 1 }}"}},
        {"chat_template_kwargs": {"messages": []}},
        {"chat_template_kwargs": {"eos_token": "x"}},
    ):
        assert server.post("/v1/chat/completions", chat(**fields)).status == 400
    harmless = chat(chat_template_kwargs={"enable_thinking": False})
    assert server.post("/v1/chat/completions", harmless).status == 200
