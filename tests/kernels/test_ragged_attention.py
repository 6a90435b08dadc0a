"""What the battery does not ask of attention: options of the call, dtypes, refusals."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import Call, choose, merge_states, ragged_paged_attention, triton, xla
from pallas_kernels.contract import AttentionInputs, call_of
from pallas_kernels.lab.battery import Case, build

# Compiled as one program: op by op, as many compilations as operations.
attend = jax.jit(
    ragged_paged_attention,
    static_argnames=("scale", "window", "softcap", "return_lse", "config", "backend"),
)

MIXED = ((1, 9), (7, 7), (3, 20), (0, 0), (1, 1), (18, 40))
SMALL = {"page_size": 4, "heads": 4, "head_dim": 8}


def call(case, **changes):
    problem = build(case)
    arrays = {name: jnp.asarray(x) for name, x in problem.arguments.items()}
    return attend(**arrays, **(problem.options | changes)), problem


@pytest.mark.parametrize("backend", ["xla", "triton"])
def test_asking_for_the_log_sum_exp_changes_nothing(backend):
    case = Case("mixed", MIXED, **SMALL)
    with_lse, _ = call(case, return_lse=True, backend=backend)
    without, _ = call(case, backend=backend)
    np.testing.assert_array_equal(without, with_lse[0])


@pytest.mark.parametrize(
    "config",
    [
        xla.Config(1, 4, 1),
        xla.Config(5, 24, 3),
        triton.Config(triton.Tile(16, 16, splits=4), triton.Tile(32, 16, splits=2)),
    ],
    ids=str,
)
def test_tuning_does_not_change_the_answer(config):
    case = Case("mixed", (*MIXED, (1, 129)), window=37, padding=2, **SMALL)
    backend = "xla" if isinstance(config, xla.Config) else "triton"
    got, problem = call(case, config=config, backend=backend)
    np.testing.assert_allclose(got, problem.out, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("backend", ["xla", "triton"])
def test_one_program_serves_every_batch(backend):
    attend = jax.jit(lambda **arguments: ragged_paged_attention(**arguments, backend=backend))
    for seed, lengths in enumerate([((1, 7), (3, 9)), ((4, 9), (0, 0)), ((2, 2), (2, 8))]):
        padding = 4 - sum(count for count, _ in lengths)
        case = Case("any", lengths, padding=padding, seed=seed, width=8, num_pages=10, **SMALL)
        problem = build(case)
        got = attend(**{name: jnp.asarray(x) for name, x in problem.arguments.items()})
        np.testing.assert_allclose(got, problem.out, rtol=1e-5, atol=2e-6)
    assert attend._cache_size() == 1


def test_merging_parts_is_attention_over_the_whole():
    random = np.random.default_rng(0)
    scores = random.normal(size=(6, 5, 4)) * 3
    values = random.normal(size=(6, 4, 8))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    whole = np.einsum("hqk,hkd->hqd", weights / weights.sum(-1, keepdims=True), values)
    outs, lses = [], []
    for part in (slice(0, 1), slice(1, 4)):
        piece = np.exp(scores[..., part])
        shares = piece / piece.sum(-1, keepdims=True)
        outs.append(np.einsum("hqk,hkd->hqd", shares, values[:, part]))
        lses.append(np.log(piece.sum(-1)))
    # A part that saw nothing, and whose output is rubbish.
    outs.append(np.full_like(outs[0], np.nan))
    lses.append(np.full_like(lses[0], -np.inf))
    out, lse = merge_states(jnp.asarray(outs, jnp.float32), jnp.asarray(lses, jnp.float32))
    np.testing.assert_allclose(out, whole, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(lse, np.log(np.exp(scores).sum(-1)), rtol=1e-5)


def test_merging_nothing_is_zero():
    out, lse = merge_states(jnp.full((2, 3, 4), jnp.nan), jnp.full((2, 3), -jnp.inf))
    np.testing.assert_array_equal(out, np.zeros((3, 4)))
    np.testing.assert_array_equal(lse, np.full(3, -np.inf))


def arguments(**changes):
    problem = build(Case("decode", ((1, 1), (1, 5), (1, 16)), num_pages=9, **SMALL))
    return problem.arguments | changes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": np.zeros((3, 8))}, r"q must be \[num_tokens, num_heads, head_dim\]"),
        ({"q": np.zeros((3, 3, 8))}, "num_heads a multiple of num_kv_heads"),
        ({"q": np.zeros((3, 4, 16))}, "head_dim must be equal"),
        ({"k_pages": np.zeros((3, 2, 4, 8))}, "k_pages and v_pages must both be"),
        ({"kv_lens": np.zeros(9, np.int32)}, "needs kv_lens"),
        ({"query_start": np.zeros(9, np.int32)}, "query_start"),
        (
            {"backend": "cuda"},
            "backend='cuda' is unknown; available: 'auto', 'triton', 'mosaic', 'xla'",
        ),
        ({"window": 0}, "window=0 must be at least 1"),
        ({"softcap": 0.0}, "softcap=0.0 must be above 0"),
        ({"sinks": np.zeros(3)}, r"sinks must be \[num_heads\] = \[4\]"),
        ({"k_scale": np.zeros((9, 4, 2))}, "must both be given, or neither"),
        (
            {"k_scale": np.zeros((9, 2, 4)), "v_scale": np.zeros((9, 4, 2))},
            r"k_scale must be \[num_pages, page_size, num_kv_heads\]",
        ),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        ragged_paged_attention(**arguments(**change))


# Which back end


def described(**changes) -> Call:
    given = arguments()
    call = call_of(AttentionInputs(**given))
    return Call(**(vars(call) | changes))


def test_on_a_cpu_auto_takes_the_reference_and_says_why():
    choice = choose("auto", described())
    assert choice.backend == "xla"
    assert dict(choice.declined)["triton"] == "its kernels are for NVIDIA GPUs, not for cpu"
    assert "NVIDIA" in str(choice)


def test_on_a_gpu_auto_takes_the_first_that_covers_the_call():
    assert choose("auto", described(target="cuda", capability=90)).backend == "triton"
    too_wide = choose("auto", described(target="cuda", capability=90, head_dim=512))
    assert too_wide.backend == "xla"
    assert "head_dim is 512" in dict(too_wide.declined)["triton"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "tpu"}, "not for tpu"),
        ({"target": "cuda", "capability": 75}, "compute capability 8.0, the device has 7.5"),
        ({"page_dtype": np.dtype(jnp.float8_e4m3fn), "capability": 80}, "needs compute capability"),
        ({"dtype": np.dtype(np.float64)}, "queries are float64"),
        ({"page_dtype": np.dtype(np.int16)}, "pages are int16"),
        ({"num_heads": 65, "num_kv_heads": 1}, "65 query heads share a key head"),
        ({"config": xla.Config(1, 1, 1)}, "config is a pallas_kernels.xla.Config"),
    ],
)
def test_a_back_end_declines_with_a_sentence(changes, message):
    with pytest.raises(NotImplementedError, match=message):
        choose("triton", described(**changes))


@pytest.mark.parametrize("elements", [2**31 + 2**20, 2**32])
def test_pages_that_would_be_indexed_with_too_few_bits_are_declined(elements):
    sizes = {"num_pages": elements // 2**13, "num_kv_heads": 4, "page_size": 16, "head_dim": 128}
    one_byte = described(**sizes, page_dtype=np.dtype(np.int8))
    with pytest.raises(NotImplementedError, match="between 2 and 4 GiB"):
        choose("triton", one_byte)
    choose("triton", described(**sizes, page_dtype=np.dtype(jnp.bfloat16)))


def test_tuning_depends_on_shapes_and_chip_alone():
    sizes = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "page_size": 16, "target": "cuda"}
    many = described(**sizes, capability=90, num_tokens=256, num_seqs=256, max_pages=512)
    few = described(**sizes, capability=90, num_tokens=1, num_seqs=1, max_pages=512)
    short = described(**sizes, capability=90, num_tokens=1, num_seqs=1, max_pages=16)
    choose_for = triton.Config.choose
    assert [choose_for(call).decode.splits for call in (many, few, short)] == [1, 32, 1]
    sizes |= {"dtype": np.dtype(jnp.bfloat16), "num_tokens": 256, "num_seqs": 8, "max_pages": 512}
    older, newer = described(**sizes, capability=80), described(**sizes, capability=90)
    assert [choose_for(call).prefill.keys for call in (older, newer)] == [32, 64]
