"""Bug bank: files as editors save them, with a byte-order mark, read as without one."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import pytest

from benchmarks.studies.paging.trace import read_trace
from benchmarks.studies.prompts import read_prompts
from convert.hf_config import read_json
from convert.hf_tokenizer import hf_tokenizer
from paxkv.bench.serve.datasets import DatasetOptions
from paxkv.bench.workload import read_workload
from paxkv.server.batch_file import count_lines, read_batch
from paxkv.server.middleware.auth import gather_keys
from paxkv.text.chat import load_template
from tests.text.small_tokenizers import byte_level

LINE = {"prompt_token_ids": [5, 6], "max_tokens": 4, "note": "a\u2028b"}


def marked(path: Path, text: str, encoding: str) -> Path:
    path.write_bytes(text.encode(encoding))
    return path


@pytest.fixture(params=["utf-8-sig", "utf-16", "utf-32"])
def encoding(request: pytest.FixtureRequest) -> str:
    """All three are what editors and shells write, with a mark."""
    return str(request.param)


def test_batch_files(tmp_path: Path, encoding: str) -> None:
    body: dict[str, Any] = {"custom_id": "ä", "url": "/v1/embeddings", "body": {"input": "x"}}
    text = "\r\n".join([json.dumps(body, ensure_ascii=False)] * 2)
    path = marked(tmp_path / "in.jsonl", text, encoding)
    first, second = read_batch(path)
    assert (first.error, second.error) == (None, None)
    assert (first.custom_id, second.custom_id, count_lines(path)) == ("ä", "ä", 2)


def test_workload_files(tmp_path: Path, encoding: str) -> None:
    """A line separator inside a string ends no line."""
    path = marked(tmp_path / "w.jsonl", json.dumps(LINE, ensure_ascii=False) + "\n", encoding)
    (request,) = read_workload(path).requests
    assert request.prompt_token_ids == (5, 6)
    assert read_prompts(path) == [[5, 6]]
    assert read_trace(path, 64).requests[0].prompt == 2
    (ask,) = DatasetOptions("jsonl", str(path), num_prompts=1).asks(0)
    assert ask.prompt == [5, 6]


def test_conversations(tmp_path: Path, encoding: str) -> None:
    turns = [{"value": "hello"}, {"value": "good day"}]
    path = marked(tmp_path / "s.json", json.dumps([{"conversations": turns}]), encoding)
    (ask,) = DatasetOptions("sharegpt", str(path), num_prompts=1, output_len=4).asks(0)
    assert ask.prompt == "hello"


def test_configuration_keys_and_templates(tmp_path: Path, encoding: str) -> None:
    assert read_json(marked(tmp_path / "c.json", '{"a": 1}', encoding)) == {"a": 1}
    keys = marked(tmp_path / "keys", "one\ntwo\n", encoding)
    assert gather_keys(None, str(keys), "api_key") == ("one", "two")
    assert load_template(marked(tmp_path / "t.jinja", "{{ 1 }}\n", encoding)) == "{{ 1 }}\n"


def test_a_tokenizers_files(tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    for name, text in (
        ("tokenizer.json", (tmp_path / "tokenizer.json").read_text()),
        ("tokenizer_config.json", '{"eos_token": "<|im_end|>"}'),
        ("chat_template.jinja", "{{ messages[0].content }}"),
    ):
        (tmp_path / name).write_bytes(BOM_UTF8 + text.encode())
    found = hf_tokenizer(tmp_path)
    assert found.decode(found.encode("the cat")) == "the cat"
    assert found.apply_chat_template([{"role": "user", "content": "hi"}]) == found.encode("hi")


def test_what_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_bytes(b'{"prompt": "\xe9"}')
    with pytest.raises(ValueError, match=f"{path} is not utf-8 text"):
        read_workload(path)
