"""Tuned configurations: kept by device, version of jax and shapes, read by the default choice."""

from __future__ import annotations

import json
import logging

import jax
import numpy as np
import pytest

from pallas_kernels import triton, tuned
from pallas_kernels.dispatch import Call
from pallas_kernels.lab import autotune as tuner
from pallas_kernels.lab.bench import Step

CALL = Call(
    num_tokens=2,
    num_seqs=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    num_pages=50,
    page_size=16,
    max_pages=4,
    dtype=np.dtype(np.float32),
    page_dtype=np.dtype(np.float32),
)
OTHER = triton.Config(triton.Tile(16, 256, splits=2), triton.Tile(64, 16, num_stages=1))


@pytest.fixture
def cache(tmp_path):
    before = tuned.cache_path()
    path = tmp_path / "deep" / "tuned.json"
    tuned.use(path)
    yield path
    tuned.use(before)


def changed(**values):
    return Call(**({name: getattr(CALL, name) for name in CALL.__dataclass_fields__} | values))


def test_what_was_stored_is_chosen_for_its_shapes_alone(cache):
    default = triton.Config.choose(CALL)
    assert default == triton.Config.by_heuristics(CALL) != OTHER
    tuned.store(cache, CALL, OTHER, 1e-3)
    assert triton.Config.choose(CALL) == OTHER
    assert triton.Config.choose(changed(num_pages=70)) == OTHER
    for values in ({"num_seqs": 3}, {"page_size": 32}, {"window": 9}, {"quantized": True}):
        assert triton.Config.choose(changed(**values)) != OTHER
    second = changed(num_seqs=3)
    tuned.store(cache, second, default, 1e-3)
    assert triton.Config.choose(CALL) == OTHER
    assert triton.Config.choose(second) == default


def test_another_device_has_its_own(cache):
    tuned.store(cache, CALL, OTHER, 1e-3)
    device = jax.sharding.AbstractDevice("NVIDIA H100", 1, "cuda")
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device)):
        assert triton.Config.choose(CALL) != OTHER


def edited(path, **values):
    held = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(held | values), encoding="utf-8")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda path: edited(path, jax="0.1.2"), "is of jax 0.1.2"),
        (lambda path: edited(path, format=99), "format 99"),
        (lambda path: path.write_text("{", encoding="utf-8"), "cannot be read and is ignored"),
        (lambda path: path.write_bytes(b"\xff\x00"), "cannot be read and is ignored"),
        (lambda path: path.write_text("[]", encoding="utf-8"), "cannot be read and is ignored"),
        (
            lambda path: edited(path, entries={"a": {"config": {"decode": {"keys": "x"}}}}),
            "integers",
        ),
        (
            lambda path: path.write_text(
                path.read_text(encoding="utf-8").replace('"keys": 256', '"keys": 250'),
                encoding="utf-8",
            ),
            "keys=250 must be a power of two",
        ),
    ],
    ids=["jax", "format", "half", "bytes", "list", "types", "value"],
)
def test_a_stale_or_broken_file_is_ignored_and_said(spoil, told, cache, caplog):
    tuned.store(cache, CALL, OTHER, 1e-3)
    spoil(cache)
    with caplog.at_level(logging.WARNING):
        assert triton.Config.choose(CALL) == triton.Config.by_heuristics(CALL)
    assert told in caplog.text
    # And is replaced by the next tuning.
    tuned.store(cache, CALL, OTHER, 1e-3)
    assert triton.Config.choose(CALL) == OTHER


def test_tuning_keeps_the_fastest_and_survives_what_does_not_compile(cache, monkeypatch):
    """With a clock that says how long each configuration takes."""
    seen = []

    def seconds(config, inputs):
        tile = config.decode
        seen.append(tile)
        if tile.num_warps == 8:
            raise RuntimeError("no registers left")
        return abs(tile.keys - 32) + abs(tile.num_stages - 2) + 1.0

    monkeypatch.setattr(tuner, "_seconds", seconds)
    said: list[str] = []
    step = Step(batch=2, context=64, heads=4, kv_heads=2, head_dim=64)
    found = tuner.autotune(step, cache, told=said.append)
    assert (found.config.decode.keys, found.config.decode.num_stages) == (32, 2)
    assert found.best == 1.0 < found.default
    assert found.tried == len(seen)
    assert any("num_warps=8: no registers left" in x for x in said)
    # One split has 64 keys at least, and there are 64.
    assert {tile.splits for tile in seen} == {1}
    (entry,) = json.loads(cache.read_text(encoding="utf-8"))["entries"].values()
    assert entry["config"]["decode"]["keys"] == 32
    assert entry["seconds"] == 1.0


def test_the_command_tunes_in_the_interpreter_when_told_where(tmp_path, monkeypatch, capsys):
    from paxkv.cli.main import main

    monkeypatch.setattr(tuner, "FIELDS", {"keys": (16,)})
    sizes = "--batch 1 --context 32 --heads 2 --kv-heads 1 --head-dim 32 --dtype float32".split()
    where = tmp_path / "tuned.json"
    assert main(["bench", "kernel", "--autotune", *sizes]) == 2
    assert "autotune needs a GPU" in capsys.readouterr().err
    assert main(["bench", "kernel", "--autotune", "--cache", str(where), *sizes]) == 0
    assert "2 tried" in capsys.readouterr().out
    assert len(json.loads(where.read_text(encoding="utf-8"))["entries"]) == 1
