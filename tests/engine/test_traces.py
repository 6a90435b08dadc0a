"""Traced programs on disk: the second start reads them, and they are the same programs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export

from pallas_kernels import copy_pages, tuned
from paxkv.engine.runner import compiler as compilation
from paxkv.engine.runner import trace_cache as traces
from paxkv.engine.runner.compiler import Compiler, use_persistent_cache
from paxkv.sampling.sampling_params import SamplingParams
from tests.engine.tiny import CONFIG, Tiny, ids

PROMPT = ids(9)
SAMPLING = SamplingParams(max_tokens=4, seed=3, top_k=9, logprobs=2, prompt_logprobs=1, n=2)


@contextmanager
def caches_in(directory: Path | None) -> Iterator[None]:
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    use_persistent_cache(directory)
    try:
        yield
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a new process would do: nothing is taken over from engines before."""

    def start(directory: Path | None, **options: Any) -> Tiny:
        options = {"layers_per_program": 1} | options
        monkeypatch.setattr(compilation, "_shared", {})
        with caches_in(directory):
            return Tiny(enforce_eager=False, max_num_seqs=2, deterministic=True, **options)

    return start


def compiler(tiny: Tiny) -> Compiler:
    return tiny.engine.runner.compiler


def test_a_second_start_traces_nothing_and_runs_the_same_programs(
    tmp_path: Path, new_process: Any
) -> None:
    plain, first, second = (new_process(where) for where in (None, tmp_path, tmp_path))
    names = compiler(plain).names
    assert len(names) > 5
    assert compiler(first).num_traced == compiler(plain).num_traced == len(names)
    assert compiler(second).num_traced == 0
    assert compiler(second).names == names
    for name in names:
        results = [compiler(tiny).results(name) for tiny in (plain, second)]
        shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), found) for found in results]
        assert shapes[0] == shapes[1]
        aliased = [
            compiler(tiny)._programs[name].call.memory_analysis().alias_size_in_bytes
            for tiny in (plain, first, second)
        ]
        assert aliased[0] == aliased[1] == aliased[2], name
    answers = [tiny.generate([PROMPT], SAMPLING)[0] for tiny in (plain, second)]
    assert answers[0].outputs == answers[1].outputs
    assert answers[0].prompt_logprobs == answers[1].prompt_logprobs


def test_another_model_other_source_text_or_tuned_tiles_are_traced_anew(
    tmp_path: Path, new_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_process(tmp_path)
    other = new_process(tmp_path, config=replace(CONFIG, rms_norm_eps=1e-3))
    assert 0 < compiler(other).num_traced < len(compiler(other).names)
    assert new_process(tmp_path).engine.runner.compiler.num_traced == 0
    monkeypatch.setattr(tuned, "_path", tmp_path / "tuned.json")
    assert new_process(tmp_path).engine.runner.compiler.num_traced == 0
    (tmp_path / "tuned.json").write_text("{}")
    tiled = new_process(tmp_path)
    assert compiler(tiled).num_traced == len(compiler(tiled).names)
    monkeypatch.setattr(traces, "_code", lambda: "edited")
    edited = new_process(tmp_path)
    assert compiler(edited).num_traced == len(compiler(edited).names)


def test_another_kind_of_device_is_traced_anew() -> None:
    """Tiles depend on it."""

    def key(name: str) -> str:
        device = jax.sharding.AbstractDevice(name, 1, "cuda")
        mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
        args = (jnp.zeros(3),)
        with jax.sharding.use_abstract_mesh(mesh):
            return traces.trace_key(partial(lambda x: -x), args, ())

    kinds = ("NVIDIA H100", "NVIDIA H200", "NVIDIA A100")
    assert len({key(kind) for kind in kinds}) == 3
    assert key(kinds[0]) == key(kinds[0])


@pytest.mark.parametrize(
    "damage", [lambda b: b[:40], lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b""]
)
def test_a_damaged_file_is_traced_again(
    damage: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = traces.TraceCache(tmp_path)
    double = partial(lambda x: x * 2)
    store.save("key", traces.traced(double, (jnp.zeros(3),), ()))
    kept = store.load("key")
    assert kept is not None
    assert kept.call(jnp.ones(3)).tolist() == [2, 2, 2]
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert store.load("key") is None
    assert "damaged" in caplog.text
    assert store.load("another") is None


def test_a_folder_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    store = traces.TraceCache(tmp_path / "file")
    store.save("key", traces.traced(partial(jnp.negative), (jnp.zeros(3),), ()))
    assert "cannot be kept" in caplog.text


def test_a_program_with_a_callback_is_compiled_and_not_kept(tmp_path: Path) -> None:
    def shout(x: jax.Array) -> jax.Array:
        return jax.pure_callback(lambda y: y, x, x)

    with caches_in(tmp_path):
        found = Compiler()
        program = found.get("shout", partial(shout), lambda: (jnp.zeros(3),))
        assert program(jnp.ones(3)).tolist() == [1, 1, 1]
    assert found.num_traced == 1
    assert not list((tmp_path / "traced").glob("*"))


def test_a_static_argument_without_a_lasting_repr_is_refused() -> None:
    function = partial(lambda x, by: x, by=object())
    with pytest.raises(TypeError, match="no repr that outlives"):
        traces.trace_key(function, (jnp.zeros(3),), ())


def test_a_program_with_a_kernel_for_gpus_can_be_written_and_read() -> None:
    pages, ids = jax.ShapeDtypeStruct((9, 2, 16, 64), "bfloat16"), jnp.zeros(4, jnp.int32)
    copy = jax.jit(partial(copy_pages, backend="triton"))
    mesh = jax.sharding.AbstractMesh(
        (), (), abstract_device=jax.sharding.AbstractDevice("NVIDIA H100", 1, "cuda")
    )
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in traces.UNSTABLE_CALLS]
    with jax.sharding.use_abstract_mesh(mesh):
        write = export.export(copy, platforms=["cuda"], disabled_checks=checks)
        kept = export.deserialize(write(pages, ids, ids, jnp.int32(2)).serialize())
    assert "__gpu$xla.gpu.triton" in kept.mlir_module()
    with jax.sharding.use_abstract_mesh(mesh), pytest.raises(ValueError, match="custom call"):
        export.export(copy, platforms=["cuda"])(pages, ids, ids, jnp.int32(2))


@pytest.mark.full
def test_shared_programs_are_bounded_and_of_the_same_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_process: Any
) -> None:
    first = new_process(None)
    held = len(compilation._shared)
    monkeypatch.setattr(compilation, "MAX_SHARED", held)
    (tmp_path / "tuned.json").write_text("{}")
    monkeypatch.setattr(tuned, "_path", tmp_path / "tuned.json")
    tiled = Tiny(enforce_eager=False, max_num_seqs=2, deterministic=True, layers_per_program=1)
    assert compiler(tiled).num_traced == len(compiler(tiled).names)
    # Those of the first are gone from there, and it has them still.
    assert len(compilation._shared) == held
    answers = [tiny.generate([PROMPT], SAMPLING)[0] for tiny in (first, tiled)]
    assert answers[0].outputs == answers[1].outputs
