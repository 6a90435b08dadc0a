"""Prompts of `bench serve`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paxkv.bench.serve import datasets
from paxkv.bench.serve.datasets import Ask, DatasetOptions
from tests.bench.tiny_llama import write_folder
from tests.text.small_tokenizers import byte_level

DATA = Path(__file__).parents[1] / "data"


def test_random_lengths_stay_within_the_range() -> None:
    options = DatasetOptions(
        num_prompts=400, input_len=100, output_len=20, range_ratio=0.5, vocab_size=50
    )
    asks = options.asks(1)
    lengths = [len(ask.prompt) for ask in asks]
    assert (min(lengths), max(lengths)) == (50, 150)
    assert {ask.max_tokens for ask in asks} == set(range(10, 31))
    tokens = {token for ask in asks for token in ask.prompt}
    assert tokens == set(range(3, 50))
    assert asks == options.asks(1)
    assert asks != options.asks(2)


def test_exact_lengths_by_default() -> None:
    asks = DatasetOptions(num_prompts=20, input_len=7, output_len=5).asks(0)
    assert {(len(ask.prompt), ask.max_tokens) for ask in asks} == {(7, 5)}


def test_prefixes_are_shared() -> None:
    options = DatasetOptions(
        dataset_name="shared-prefix", num_prompts=30, num_prefixes=3, prefix_len=40, input_len=10
    )
    asks = options.asks(0)
    assert len({tuple(ask.prompt[:40]) for ask in asks}) == 3
    assert len({tuple(ask.prompt[40:]) for ask in asks}) == 30
    assert {len(ask.prompt) for ask in asks} == {50}


def test_a_workload_file(tmp_path: Path) -> None:
    asks = DatasetOptions(
        dataset_name="jsonl", dataset_path=str(DATA / "w1_offline_mixed.jsonl"), num_prompts=5
    ).asks(0)
    lines = (DATA / "w1_offline_mixed.jsonl").read_text().splitlines()[:5]
    for ask, line in zip(asks, map(json.loads, lines), strict=True):
        assert ask.prompt == line["prompt_token_ids"]
        assert ask.max_tokens == line["max_tokens"]
        assert ask.fields["temperature"] == line["temperature"]
        assert not {"prompt", "id", "max_tokens"} & set(ask.fields)
    file = tmp_path / "own.jsonl"
    messages = [{"role": "user", "content": "b"}]
    file.write_text(
        json.dumps({"prompt": "a", "n": 2}) + "\n\n" + json.dumps({"messages": messages}) + "\n"
    )
    options = DatasetOptions(dataset_name="jsonl", dataset_path=str(file), num_prompts=3)
    assert options.asks(0) == [Ask("a", 16, {"n": 2}), Ask(messages, 16), Ask("a", 16, {"n": 2})]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[1]", "JSON object"),
        ("{x", "not JSON"),
        ('{"max_tokens": 3}', "needs prompt"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens is 0"),
        ('{"prompt": "a", "max_tokens": true}', "max_tokens is True"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"prompt": "a"}\n' + line + "\n")
    with pytest.raises(ValueError, match=f"line 2: .*{words}"):
        DatasetOptions(dataset_name="jsonl", dataset_path=str(file)).asks(0)


def conversation(*turns: str) -> dict:
    people = ("human", "gpt")
    return {"conversations": [{"from": people[i % 2], "value": t} for i, t in enumerate(turns)]}


def test_sharegpt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First turns; with a tokenizer those that are too short or long are left out."""
    file = tmp_path / "sharegpt.json"
    entries = [
        conversation("one " * 6, "two " * 9, "three"),
        conversation("alone " * 6),
        conversation("short", "reply " * 8),
        conversation("long " * 1100, "reply " * 8),
        conversation("word " * 1000, "reply " * 1100),
        conversation("four " * 5, "tiny"),
        conversation("five " * 5, "six " * 7),
    ]
    file.write_text(json.dumps(entries))
    monkeypatch.setattr(DatasetOptions, "_counter", lambda self: lambda text: len(text.split()))
    options = DatasetOptions(
        dataset_name="sharegpt", dataset_path=str(file), num_prompts=2, tokenizer="m"
    )
    found = sorted(options.asks(3), key=lambda ask: ask.max_tokens)
    assert found == [Ask("five " * 5, 7), Ask("one " * 6, 9)]
    monkeypatch.undo()
    fixed = DatasetOptions(
        dataset_name="sharegpt", dataset_path=str(file), num_prompts=6, output_len=5
    ).asks(0)
    assert {ask.max_tokens for ask in fixed} == {5}
    assert {ask.prompt for ask in fixed} == {
        e["conversations"][0]["value"] for e in entries if len(e["conversations"]) > 1
    }
    with pytest.raises(ValueError, match="tokenizer"):
        DatasetOptions(dataset_name="sharegpt", dataset_path=str(file)).asks(0)
    file.write_text('{"a": 1}')
    with pytest.raises(ValueError, match="not a ShareGPT file"):
        DatasetOptions(dataset_name="sharegpt", dataset_path=str(file), output_len=3).asks(0)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"num_prompts": 0}, "num_prompts"),
        ({"range_ratio": 1.0}, "range_ratio"),
        ({"vocab_size": datasets.FIRST_ID}, "vocab_size"),
        ({"dataset_name": "jsonl"}, "dataset_path"),
        ({"dataset_path": "x"}, "dataset_path"),
    ],
)
def test_wrong_options_are_named(options: dict, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        DatasetOptions(**options)


def test_sharegpt_is_counted_by_a_models_tokenizer(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    byte_level().save(str(folder / "tokenizer.json"))
    file = tmp_path / "sharegpt.json"
    file.write_text(json.dumps([conversation("the cat sat", "on the mat, and stayed")]))
    (ask,) = DatasetOptions(
        dataset_name="sharegpt", dataset_path=str(file), num_prompts=1, tokenizer=str(folder)
    ).asks(0)
    assert ask.max_tokens == len(byte_level().encode("on the mat, and stayed").ids)
