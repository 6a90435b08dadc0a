"""What a back end exports, and what happens where one cannot be imported."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import Call, choose, dispatch, quantize_weight, quantized_matmul
from pallas_kernels.contract import AttentionOptions, Backend, KVLayout
from pallas_kernels.custom import CustomBackend
from pallas_kernels.dispatch import BACK_ENDS, module_of

FUNCTIONS = ("check", "prepare", "attention", "write_kv", "copy_pages")


def described(**changes: Any) -> Call:
    sizes: dict[str, Any] = {
        "num_tokens": 64,
        "num_seqs": 64,
        "num_heads": 32,
        "num_kv_heads": 8,
        "head_dim": 128,
        "num_pages": 1000,
        "page_size": 16,
        "max_pages": 512,
        "dtype": np.dtype(jnp.bfloat16),
        "page_dtype": np.dtype(jnp.bfloat16),
        "target": "cuda",
        "capability": 90,
    }
    return Call(**(sizes | changes))


@pytest.mark.parametrize("name", [*BACK_ENDS, "custom"])
def test_a_back_end_exports_the_contract(name: str) -> None:
    back_end: Any = CustomBackend(print) if name == "custom" else module_of(name)
    assert isinstance(back_end.page_layout, KVLayout)
    assert isinstance(back_end.Config, type)
    for function in FUNCTIONS:
        wanted = list(inspect.signature(getattr(Backend, function)).parameters)[1:]
        assert list(inspect.signature(getattr(back_end, function)).parameters) == wanted, function


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Take a part of Pallas away, as a later JAX may."""

    def remove(part: str, *back_ends: str) -> None:
        for name in list(sys.modules):
            if name.startswith(tuple(f"pallas_kernels.{end}" for end in back_ends)):
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, f"jax.experimental.pallas.{part}", None)
        monkeypatch.delattr(f"jax.experimental.pallas.{part}", raising=False)
        dispatch._choose.cache_clear()

    yield remove
    dispatch._choose.cache_clear()


def test_auto_falls_through_a_back_end_that_cannot_be_imported(without: Any) -> None:
    assert choose("auto", described()).backend == "triton"
    without("triton", "triton")
    choice = choose("auto", described())
    assert choice.backend in ("mosaic", "xla")
    assert "it cannot be imported with jax" in dict(choice.declined)["triton"]
    assert "pallas" in dict(choice.declined)["triton"]
    with pytest.raises(NotImplementedError, match="it cannot be imported with jax .*triton"):
        choose("triton", described())


def test_without_any_gpu_back_end_auto_is_xla(without: Any) -> None:
    without("triton", "triton")
    without("mosaic_gpu", "mosaic")
    choice = choose("auto", described())
    assert choice.backend == "xla"
    assert [name for name, _ in choice.declined] == ["triton", "mosaic"]
    assert all("cannot be imported" in sentence for _, sentence in choice.declined)


def test_a_product_falls_through_too(without: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = quantize_weight(np.ones((16, 64), np.float32), group=32)
    x = jnp.ones((2, 64))
    want = quantized_matmul(x, weight, backend="xla")
    without("triton", "triton")
    monkeypatch.setattr("pallas_kernels.quantized.matmul.current_target", lambda: "cuda")
    np.testing.assert_array_equal(quantized_matmul(x, weight), want)
    with pytest.raises(ImportError):
        quantized_matmul(x, weight, backend="triton")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"window": 0}, "window=0 must be"), ({"softcap": 0.0}, "softcap=0.0 must be above 0")],
)
def test_options_that_cannot_be_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AttentionOptions(1.0, **wrong)
