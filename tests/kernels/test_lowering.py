"""The Triton kernels lowered for CUDA on a machine without a GPU.

Shows that Pallas accepts them and what it makes of page arrays; nothing about their running.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.pallas.triton import lowering as triton_lowering

from pallas_kernels import cascade_attention, copy_pages, ragged_paged_attention, write_kv

MESH = jax.sharding.AbstractMesh(
    (), (), abstract_device=jax.sharding.AbstractDevice("NVIDIA H100", 1, "cuda")
)
KERNEL = "__gpu$xla.gpu.triton"


def array(*shape: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def described(
    num_tokens: int,
    head_dim: int,
    page_size: int,
    heads: int,
    kv_heads: int,
    dtype: Any = jnp.bfloat16,
    page_dtype: Any = None,
    num_pages: int = 1000,
    num_seqs: int = 8,
) -> dict[str, Any]:
    page_dtype = page_dtype or dtype
    pages = array(num_pages, kv_heads, page_size, head_dim, dtype=page_dtype)
    given = {
        "q": array(num_tokens, heads, head_dim, dtype=dtype),
        "k_pages": pages,
        "v_pages": pages,
        "block_tables": array(num_seqs, 512),
        "kv_lens": array(num_seqs),
        "query_start": array(num_seqs + 1),
    }
    if jnp.dtype(page_dtype).itemsize == 1:
        factors = array(num_pages, page_size, kv_heads, dtype=jnp.float32)
        given |= {"k_scale": factors, "v_scale": factors}
    return given


def lowered(function: Any, donate: tuple[str, ...] = (), **arguments: Any) -> str:
    with jax.sharding.use_abstract_mesh(MESH):
        traced = jax.jit(function, donate_argnames=donate).trace(**arguments)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


def on_triton(function: Any, **options: Any) -> Any:
    """The function by keyword, so that what is donated can be named."""
    return lambda **arguments: function(**arguments, backend="triton", **options)


@pytest.mark.parametrize(
    ("sizes", "options", "kernels"),
    [
        ((8, 128, 16, 32, 8), {}, 2),
        ((8, 64, 16, 9, 3), {"window": 100, "softcap": 30.0}, 2),
        ((64, 80, 8, 4, 4), {"window": 100}, 3),
        ((64, 96, 128, 10, 2, jnp.float32), {}, 3),
        ((300, 256, 64, 8, 1, jnp.float16), {"return_lse": True}, 3),
        ((64, 128, 32, 8, 2, jnp.bfloat16, jnp.int8), {}, 3),
        ((8, 128, 16, 8, 1, jnp.bfloat16, jnp.float8_e4m3fn), {}, 2),
    ],
    ids=str,
)
def test_attention_lowers(sizes, options, kernels):
    text = lowered(on_triton(ragged_paged_attention, **options), **described(*sizes))
    assert text.count(KERNEL) == kernels
    # The layout of the pages is the kernel's: nobody turns or copies them first.
    pages = described(*sizes)["k_pages"].shape
    moved = re.findall(
        rf"stablehlo\.(?:transpose|copy)[^\n]*tensor<{'x'.join(map(str, pages))}x", text
    )
    assert not moved


def test_cascade_lowers():
    text = lowered(on_triton(cascade_attention), **described(8, 128, 16, 32, 8), shared_len=array())
    assert text.count(KERNEL) == 4


@pytest.mark.parametrize("page_dtype", [jnp.bfloat16, jnp.int8, jnp.float8_e4m3fn])
def test_writing_lowers_and_donates(page_dtype):
    given = described(64, 80, 8, 9, 3, page_dtype=page_dtype)
    arrays = {name: x for name, x in given.items() if "pages" in name or "scale" in name}
    new = array(64, 3, 80, dtype=jnp.bfloat16)
    text = lowered(
        on_triton(write_kv), donate=tuple(arrays), **arrays, k=new, v=new, slot_mapping=array(64)
    )
    assert text.count(KERNEL) == 1
    assert text.count("tf.aliasing_output") == len(arrays)
    assert text.count("output_operand_alias") >= len(arrays)


def test_copying_lowers_and_donates():
    pages = described(8, 80, 8, 9, 3)["k_pages"]
    indices = array(8)
    text = lowered(
        on_triton(copy_pages),
        donate=("pages",),
        pages=pages,
        source=indices,
        destination=indices,
        count=array(),
    )
    assert text.count(KERNEL) == 1
    assert text.count("tf.aliasing_output") == 1


@pytest.mark.parametrize(("num_pages", "bits"), [(1000, 32), (200_000, 64)])
def test_offsets_in_a_huge_pool_have_64_bits(num_pages, bits, monkeypatch):
    """200,000 pages of 16,384 elements are 3.3e9: beyond int32."""
    modules = []
    lower = triton_lowering.lower_jaxpr_to_triton_module

    def keep(*args: Any, **kwargs: Any) -> Any:
        result = lower(*args, **kwargs)
        modules.append(str(result.module))
        return result

    monkeypatch.setattr(triton_lowering, "lower_jaxpr_to_triton_module", keep)
    sizes = {"num_pages": num_pages, "num_seqs": 9}
    lowered(partial(on_triton(ragged_paged_attention)), **described(8, 128, 16, 32, 8, **sizes))
    attention = next(module for module in modules if "paged_attention" in module)
    # Offsets of a block of keys: [keys, head_dim].
    block = r"tt\.addptr [^\n]*tensor<64x128x!tt\.ptr<bf16>>, tensor<64x128xi(\d+)>"
    assert set(re.findall(block, attention)) == {str(bits)}
