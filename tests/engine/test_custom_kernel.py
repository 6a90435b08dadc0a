"""An attention kernel of the user's own in the engine."""

from __future__ import annotations

import importlib
import shutil
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels import ragged_paged_attention
from pallas_kernels.custom import CustomBackend
from pallas_kernels.lab import triton_example
from paxkv import LLM
from paxkv.engine.config import EngineConfig
from paxkv.engine.runner.attention import Kernels
from paxkv.engine.runner.compiler import Compiler, use_persistent_cache
from paxkv.sampling.sampling_params import SamplingParams
from tests.engine.tiny import CONFIG, Tiny, greedy, ids

EXAMPLE = f"{triton_example.__file__}:attention"
TIGHT: dict[str, Any] = {
    "num_gpu_blocks_override": 13,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 8,
    "max_model_len": 64,
    "deterministic": True,
}
PROMPTS = [ids(11), ids(5, salt=1)]
WINDOWED = replace(CONFIG, sliding_window=7)

# With a factor of -3, other tokens than without.
SCALED = """
from __future__ import annotations

from dataclasses import dataclass

from factor_of_test import FACTOR

from pallas_kernels import ragged_paged_attention


@dataclass(frozen=True)
class Factor:
    value: float


def attention(*arrays, **options):
    return ragged_paged_attention(*arrays, **options, backend="xla") * Factor({factor}).value
"""


def answers(tiny: Tiny) -> list[list[int]]:
    outputs = tiny.generate(PROMPTS, greedy(5))
    return [list(output.outputs[0].token_ids) for output in outputs]


@cache
def wanted() -> list[list[int]]:
    return answers(Tiny(attention_backend="xla", **TIGHT))


def test_the_example_gives_the_tokens_of_the_xla_path() -> None:
    """In chunks, with rows that are preempted; pages in the standard layout."""
    tiny = Tiny(attention_backend=EXAMPLE, **TIGHT)
    assert answers(tiny) == wanted()
    stats = tiny.engine.stats()
    assert stats.attention == (
        f"{EXAMPLE} (a kernel of your own; pages are written and copied by xla)"
    )
    keys, _ = tiny.engine.runner._pages[0]
    assert keys.shape[2:] == (tiny.options.block_size, CONFIG.head_dim)


def test_a_function_in_python_is_a_back_end_and_sees_every_layer() -> None:
    """Of quantized pages it gets the factors, of a window the window."""
    seen: list[dict[str, Any]] = []

    def attention(q: Any, *arrays: Any, scale: float, **more: Any) -> Any:
        seen.append(more)
        return ragged_paged_attention(q, *arrays, scale=scale, **more, backend="xla")

    options = TIGHT | {"kv_cache_dtype": "int8"}
    want = answers(Tiny(WINDOWED, attention_backend="xla", **options))
    assert answers(Tiny(WINDOWED, attention_backend=attention, **options)) == want
    assert all(set(more) == {"window", "k_scale", "v_scale"} for more in seen)
    assert all(more["window"] == 7 for more in seen)


def test_what_a_kernel_does_not_cover_it_declines() -> None:
    with pytest.raises(ValueError, match=r"attention' cannot run this: the example knows no wind"):
        Tiny(WINDOWED, attention_backend=EXAMPLE)
    with pytest.raises(ValueError, match="cannot run this: the example knows no windows, caps"):
        Tiny(attention_backend=EXAMPLE, kv_cache_dtype="int8")

    def plain(q: Any, k: Any, v: Any, tables: Any, lens: Any, starts: Any, *, scale: float) -> Any:
        return ragged_paged_attention(q, k, v, tables, lens, starts, scale=scale, backend="xla")

    assert answers(Tiny(attention_backend=plain, **TIGHT)) == wanted()
    with pytest.raises(ValueError, match=r"plain' cannot run this: the kernel has no .* window"):
        Tiny(WINDOWED, attention_backend=plain)

    def decodes_only(q: Any, *arrays: Any, **options: Any) -> Any:
        if q.shape[0] > arrays[3].shape[0]:
            raise NotImplementedError("prompts are not covered")
        return q

    with pytest.raises(ValueError, match="decodes_only' cannot run this: prompts are not covered"):
        Tiny(attention_backend=decodes_only)


def returns_half_the_heads(q: Any, *arrays: Any, **options: Any) -> Any:
    return q[:, ::2]


def returns_float16(q: Any, *arrays: Any, **options: Any) -> Any:
    return q.astype(jnp.float16)


def returns_a_pair(q: Any, *arrays: Any, **options: Any) -> Any:
    return q, q[..., 0]


def returns_nothing(*arrays: Any, **options: Any) -> None:
    pass


def looks_at_values(q: Any, *arrays: Any, **options: Any) -> Any:
    return q if arrays[3][0] else -q


def is_wrong_when_decoding(q: Any, *arrays: Any, **options: Any) -> Any:
    return q if q.shape[0] > arrays[3].shape[0] else q[:0]


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("nowhere.py:f", "there is no file 'nowhere.py'"),
        (EXAMPLE[: -len("attention")] + "missing", "has no function 'missing'"),
        (EXAMPLE[: -len("attention")] + "KEYS", "has no function 'KEYS'"),
        (EXAMPLE[: -len("attention")], "has no function ''"),
        (returns_half_the_heads, r"heads' must return float32\[8, 6, 8\], .* float32\[8, 3, 8\]"),
        (returns_float16, r"must return float32\[8, 6, 8\], .*, got float16\[8, 6, 8\]"),
        (returns_a_pair, r"must return float32\[8, 6, 8\], .*, got tuple"),
        (returns_nothing, "got NoneType"),
        (looks_at_values, "failed when it was traced for q .* TracerBoolConversionError"),
        (lambda q: q, r"<lambda>' .* no parameter scale"),
        (lambda q, *, scale: q, "failed when it was traced for q .* TypeError: .*positional"),
        (is_wrong_when_decoding, r"must return float32\[8, 6, 8\], .* float32\[0, 6, 8\]"),
    ],
)
def test_what_cannot_be_a_kernel_is_said_before_the_engine_starts(
    kernel: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=f"attention_backend=.*{message}"):
        Tiny(attention_backend=kernel)


@pytest.mark.parametrize("text", ["def attention(:", "import nothing_of_this_name", "1 / 0"])
def test_a_file_that_does_not_run_is_said(text: str, tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"attention_backend=.*: running .*kernel.py failed: "):
        Tiny(attention_backend=f"{file}:attention")


@pytest.mark.parametrize("value", ["cuda", "", "kernel.py", 3, None])
def test_what_names_no_kernel_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="attention_backend=.* must be one of auto, xla, triton, "):
        EngineConfig(attention_backend=value)


def test_an_edited_kernel_is_never_run_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither from the disk nor from an engine of this process, and nor is what it imports."""
    monkeypatch.syspath_prepend(tmp_path)
    before = jax.config.values["jax_compilation_cache_dir"]

    def tokens(file: str, neighbor: str) -> list[list[int]]:
        (tmp_path / "kernel.py").write_text(SCALED.format(factor=file))
        (tmp_path / "factor_of_test.py").write_text(f"FACTOR = {neighbor}")
        sys.modules.pop("factor_of_test", None)
        importlib.invalidate_caches()
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        kernel = f"{tmp_path / 'kernel.py'}:attention"
        return answers(Tiny(attention_backend=kernel, **TIGHT))

    try:
        use_persistent_cache(tmp_path / "programs")
        assert tokens("FACTOR", "1.0") == wanted()
        assert tokens("FACTOR", "-3.0") != wanted(), "what it imports was edited"
        assert tokens("1.0", "-3.0") == wanted(), "it was edited"
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_a_program_with_one_kernel_never_stands_in_for_another() -> None:
    """Whatever the kernels say: what is traced depends on more than their names and equality."""

    class Scaled:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Scaled)

        def __hash__(self) -> int:
            return 0

        def __repr__(self) -> str:
            return "Scaled()"

        def __call__(self, q: Any, *arrays: Any, **options: Any) -> Any:
            return q * self.factor

    def run(x: Any, *, kernels: Kernels) -> Any:
        attend = kernels.attention(CONFIG, ((),))(CONFIG.layers[0])
        return attend(x, *[None] * 5)

    def made(factor: float) -> Any:
        found = Compiler()
        kernels = Kernels(CustomBackend(Scaled(factor)))
        program = found.get("run", partial(run, kernels=kernels), lambda: (jnp.ones((1, 1, 1)),))
        return program(jnp.ones((1, 1, 1))).item()

    assert [made(factor) for factor in (2.0, 3.0)] == [2.0, 3.0]


@pytest.mark.full
def test_smollm2_runs_on_the_example_kernel() -> None:
    """End to end, interpreted: the greedy tokens of the XLA path."""

    def run(backend: str) -> list[Any]:
        llm = LLM(
            "smollm2-135m",
            dtype="float32",
            attention_backend=backend,
            max_num_seqs=2,
            max_num_batched_tokens=16,
            max_model_len=64,
            num_gpu_blocks_override=9,
            enforce_eager=True,
        )
        prompts = ["The three largest cities of the world are", "1, 2, 3, 4, 5, 6,"]
        params = SamplingParams(temperature=0, max_tokens=12)
        return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]

    assert run(EXAMPLE) == run("xla")
