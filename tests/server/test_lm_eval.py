"""lm-eval's API models score as its transformers backend does, on tasks of local files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.tiny_server import serving

lm_eval = pytest.importorskip("lm_eval", reason="needs: pip install 'paxkv[eval]'")
pytest.importorskip("torch")
pytestmark = pytest.mark.full

NAME = "smollm2-135m"
CLOSE = 2e-3
COUNTRIES = "France Italy Spain Norway Egypt Japan Cuba Peru".split()
NAMES = "Paris Rome Madrid Oslo Cairo Tokyo Havana Lima".split()
CAPITALS = [*zip(COUNTRIES, NAMES)]
WORDS = {"cat": "The cat sat on the mat.", "sea": "The sea is blue, and the sky above it is too."}


def tasks(folder: Path) -> list[dict[str, Any]]:
    """Multiple choice by loglikelihood, whole texts by it, and free answers."""
    choices = [
        {"question": country, "answer": place, "choices": NAMES}
        for place, (country, _) in enumerate(CAPITALS)
    ]
    texts = [{"word": word, "text": text} for word, text in WORDS.items()]
    answers = [{"question": country, "answer": capital} for country, capital in CAPITALS]

    def task(name: str, rows: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {
                "data_files": {"test": str(path)},
                "cache_dir": str(folder / "cache"),
            },
            "test_split": "test",
            **fields,
        }

    question = "The capital of {{question}} is"
    return [
        task(
            "capital_choice", choices, output_type="multiple_choice", doc_to_text=question,
            doc_to_choice="{{choices}}", doc_to_target="answer",
            metric_list=[{"metric": "acc"}, {"metric": "acc_norm"}],
        ),
        task(
            "perplexity", texts, output_type="loglikelihood_rolling", doc_to_text="",
            doc_to_target="text", metric_list=[{"metric": "word_perplexity"}],
        ),
        task(
            "capital_answer", answers, output_type="generate_until", doc_to_text=question,
            doc_to_target=" {{answer}}", metric_list=[{"metric": "exact_match"}],
            generation_kwargs={"until": [".", "\n"], "max_gen_toks": 8},
        ),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """lm-eval's own transformers model, and a folder with the tokenizer."""
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    from convert import open_checkpoint
    from convert.pull import PullError, resolve
    from paxkv.bench.transformers_model import build_transformers_model

    try:
        checkpoint = open_checkpoint(resolve(NAME, progress=False))
    except PullError as error:
        pytest.skip(str(error))
    folder = str(tmp_path_factory.mktemp("tokenizer"))
    own = checkpoint.tokenizer()
    made = PreTrainedTokenizerFast(tokenizer_object=own.backend, **own.special_tokens)
    made.chat_template = own.chat_template
    made.save_pretrained(folder)
    model = build_transformers_model(checkpoint)
    return HFLM(pretrained=model, tokenizer=AutoTokenizer.from_pretrained(folder)), folder


def evaluate(model: Any, wanted: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    return lm_eval.simple_evaluate(
        model=model, tasks=wanted, log_samples=True, bootstrap_iters=0, **options
    )


def scores(found: dict[str, Any]) -> dict[str, dict[str, float]]:
    return {
        task: {name: value for name, value in values.items() if isinstance(value, float)}
        for task, values in found["results"].items()
    }


def answers(found: dict[str, Any], task: str) -> list[Any]:
    return [sample["filtered_resps"] for sample in sorted(found["samples"][task], key=_doc)]


def _doc(sample: dict[str, Any]) -> int:
    return int(sample["doc_id"])


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    from paxkv import LLM

    llm = LLM(
        NAME,
        dtype="float32",
        max_num_seqs=8,
        max_num_batched_tokens=128,
        max_model_len=512,
        num_gpu_blocks_override=256,
        enforce_eager=True,
    )
    with serving(llm, name=NAME) as found:
        yield found


def arguments(server: Any, path: str, folder: str, **more: Any) -> dict[str, Any]:
    return {
        "model": NAME,
        "base_url": f"http://127.0.0.1:{server.port}{path}",
        "tokenizer": folder,
        "max_length": 512,
        **more,
    }


def test_local_completions(server: Any, reference: tuple[Any, str], tmp_path: Path) -> None:
    """Scores, loglikelihoods and texts; several requests at once, of two prompts each."""
    model, folder = reference
    wanted = tasks(tmp_path)
    want = evaluate(model, wanted)
    given = arguments(server, "/v1/completions", folder, num_concurrent=4, batch_size=2)
    api = lm_eval.api.registry.get_model("local-completions")(**given)
    found = evaluate(api, wanted)
    assert set(scores(found)) == {"capital_choice", "perplexity", "capital_answer"}
    for task, values in scores(want).items():
        assert scores(found)[task] == pytest.approx(values, rel=CLOSE)
    assert 0.3 < scores(found)["capital_choice"]["acc,none"] <= 1
    for mine, other in zip(answers(found, "capital_choice"), answers(want, "capital_choice")):
        for (loglikelihood, greedy), (want_it, want_greedy) in zip(mine, other, strict=True):
            assert loglikelihood == pytest.approx(want_it, abs=CLOSE)
            assert greedy == want_greedy
    assert answers(found, "capital_answer") == answers(want, "capital_answer")


def test_local_chat_completions(server: Any, reference: tuple[Any, str], tmp_path: Path) -> None:
    model, folder = reference
    wanted = tasks(tmp_path)[-1:]
    want = evaluate(model, wanted, apply_chat_template=True)
    given = arguments(server, "/v1/chat/completions", folder, num_concurrent=4)
    api = lm_eval.api.registry.get_model("local-chat-completions")(**given)
    found = evaluate(api, wanted, apply_chat_template=True)
    assert scores(found) == scores(want)
    assert answers(found, "capital_answer") == answers(want, "capital_answer")
    assert all(text for (text,) in answers(found, "capital_answer"))
