"""The capacity input_builder against published figures and against arrays that exist."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import jax
import pytest

from paxkv.cache.pages import PageLayout
from paxkv.capacity import Question, make_plan
from paxkv.capacity.model_bytes import kv_bytes_per_token, weight_bytes
from paxkv.cli.main import main
from paxkv.engine.build import resolve_dtype
from paxkv.models.config import ModelConfig
from paxkv.models.weights import init_params

WIDE = ModelConfig(
    architecture="llama",
    vocab_size=50272,
    hidden_size=5120,
    intermediate_size=13824,
    num_layers=40,
    num_heads=40,
    num_kv_heads=40,
    head_dim=128,
)
SMALL = ModelConfig(
    architecture="llama",
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    qkv_bias=True,
    o_bias=True,
)
BARE = Question(kv_cache_memory_bytes=22 << 30, bytes_per_token=512 << 10)


def test_a_wide_model_stores_819200_bytes_per_token():
    assert kv_bytes_per_token(WIDE, "float16") == 819_200
    assert make_plan(Question(memory=80 << 30), WIDE).bytes_per_token == 819_200


def test_22_gib_hold_22_requests_reserved_and_88_paged():
    plan = make_plan(BARE)
    assert (plan.blocks, plan.contiguous.requests, plan.paged.requests) == (2816, 22, 88)


def test_the_command_prints_the_same(capsys):
    flags = "--bytes-per-token 0.5MiB --kv-cache-memory-bytes 22GiB --block-size 16"
    flags += " --max-model-len 2048 --expected-len 512"
    assert main(["plan", *flags.split()]) == 0
    out = capsys.readouterr().out
    assert "2,816" in out
    assert "│ requests │                       22 │                  88 │" in out
    assert main(["plan", "--json", *flags.split()]) == 0
    assert json.loads(capsys.readouterr().out)["paged"]["requests"] == 88


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_those_of_the_real_arrays(tied, dtype):
    config = replace(SMALL, tie_word_embeddings=tied)
    params = init_params(config, jax.random.key(0), dtype)
    assert weight_bytes(config, dtype) == sum(leaf.nbytes for leaf in jax.tree.leaves(params))


def test_blocks_and_slots_add_up():
    plan = make_plan(Question(memory=40 << 30, weights_dtype="float16", expected_len=500), WIDE)
    assert plan.model is not None
    left = int((40 << 30) * 0.9) - plan.model.weights - plan.model.activations
    assert plan.kv_bytes == left
    assert plan.blocks == left // (819_200 * 16)
    for holding in (plan.contiguous, plan.paged):
        assert sum(holding.slots.values()) == pytest.approx(plan.slots)
        assert min(holding.slots.values()) >= 0
    # 500 tokens need 32 blocks, not 31.25.
    assert plan.paged.requests == plan.blocks // 32


def test_tensor_parallel_splits_matrices_and_heads():
    whole, half = (
        make_plan(Question(memory=80 << 30, tensor_parallel_size=t), WIDE) for t in (1, 2)
    )
    assert half.bytes_per_token * 2 == whole.bytes_per_token
    assert whole.model.weights / 2 < half.model.weights < whole.model.weights * 0.51
    many = replace(SMALL, num_kv_heads=1)
    assert kv_bytes_per_token(many, "float16", 4) == kv_bytes_per_token(many, "float16")


def test_smaller_types():
    eight = Question(memory=80 << 30, weights_dtype="int8", kv_cache_dtype="float8_e4m3fn")
    # And a factor of four bytes for the keys and one for the values of each head.
    assert make_plan(eight, WIDE).bytes_per_token == 409_600 + 2 * 40 * 40 * 4
    assert make_plan(replace(eight, kv_cache_dtype="auto"), WIDE).bytes_per_token == 819_200


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8", "fp8", "fp8_e5m2"])
def test_bytes_of_a_token_are_those_of_the_engines_pages(name):
    layout = PageLayout.of(SMALL, 16, resolve_dtype(name, None))
    held = sum(math.prod(x.shape) * x.dtype.itemsize for x in layout.arrays(10))
    assert held * SMALL.num_layers == 10 * layout.bytes_per_page
    assert layout.bytes_per_token == kv_bytes_per_token(SMALL, name)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (Question(memory=24 << 30), r"3\.19 GiB are missing"),
        (replace(BARE, bytes_per_token=None), "bytes_per_token must be given"),
        (replace(BARE, kv_cache_memory_bytes=4096), "less than one block"),
        (replace(BARE, expected_len=4096), "expected_len=4096 must be"),
    ],
)
def test_what_does_not_fit_is_named(question, message):
    config = WIDE if question.memory else None
    with pytest.raises(ValueError, match=message):
        make_plan(question, config)


def test_wrong_options_are_one_sentence(capsys, tmp_path):
    assert main(["plan", "--bytes-per-token", "8"]) == 2
    assert "--memory or --kv-cache-memory-bytes must be given" in capsys.readouterr().err
    assert main(["plan", "--config", str(tmp_path / "no.json"), "--memory", "1GiB"]) == 2
    assert "no.json is missing" in capsys.readouterr().err
    path = tmp_path / "config.json"
    fields = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    fields |= {"num_attention_heads": 4, "vocab_size": 99, "model_type": "llama"}
    path.write_text(json.dumps(fields))
    flags = ["--config", str(path), "--memory", "1GiB"]
    assert main(["plan", "--json", *flags, "--weights-dtype", "float16"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes_per_token"] == 2 * 2 * 64 * 2
    assert main(["plan", *flags, "--weights-dtype", "half"]) == 2
    assert "--weights-dtype='half' must be one of float32" in capsys.readouterr().err
