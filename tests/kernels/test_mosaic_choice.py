"""Which calls the Mosaic GPU back end takes, and how it is tuned; nothing here runs the kernel."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import Call, choose, mosaic
from pallas_kernels.mosaic.tuning import shared_memory


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


@pytest.fixture
def newer_jax(monkeypatch):
    monkeypatch.setattr(jax, "__version_info__", (0, 11, 2))


def test_older_jax_is_declined(monkeypatch):
    monkeypatch.setattr(jax, "__version_info__", (0, 10, 2))
    with pytest.raises(NotImplementedError, match=r"needs jax 0\.11 or newer, this is"):
        mosaic.check(described())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "tpu"}, "not for tpu"),
        ({"capability": 80}, "needs compute capability 9.0, the device has 8.0"),
        ({"capability": 100}, "needs compute capability 9.0, the device has 10.0"),
        ({"dtype": np.dtype(np.float32)}, "queries are float32, which wgmma does not multiply"),
        ({"page_dtype": np.dtype(np.int8), "quantized": True}, "pages are int8"),
        ({"page_dtype": np.dtype(np.float16)}, "pages are float16"),
        ({"head_dim": 72}, "head_dim is 72; covered are 64"),
        ({"num_heads": 65, "num_kv_heads": 1}, "65 query heads share a key head"),
        ({"page_size": 4}, "page_size is 4; covered are multiples of 8 that divide 64"),
        ({"page_size": 24}, "page_size is 24"),
        (
            {"config": mosaic.Config(mosaic.Tile(keys=128, stages=8), mosaic.Tile())},
            "bytes of shared memory, there are 232448",
        ),
    ],
    ids=str,
)
@pytest.mark.usefixtures("newer_jax")
def test_what_is_not_covered_is_declined_with_a_sentence(changes, message):
    mosaic.check(described())
    with pytest.raises(NotImplementedError, match=message):
        mosaic.check(described(**changes))


def test_auto_asks_triton_first_and_says_why():
    choice = choose("auto", described())
    assert choice.backend == "triton"
    assert "mosaic is asked after it until it has run on a GPU" in choice.reason


@pytest.mark.parametrize("head_dim", mosaic.HEAD_DIMS)
def test_tuning_fits_the_chip_and_depends_on_shapes_alone(head_dim):
    many = mosaic.Config.choose(described(num_tokens=256, num_seqs=256, head_dim=head_dim))
    few = mosaic.Config.choose(described(num_tokens=1, num_seqs=1, head_dim=head_dim))
    assert (many.decode.splits, few.decode.splits) == (1, 16)
    for config in (many, few):
        for tile in (config.decode, config.prefill):
            assert shared_memory(tile, head_dim) <= mosaic.MOST_SHARED_MEMORY


@pytest.mark.parametrize(
    "sizes",
    [{"keys": 32}, {"consumers": 0}, {"consumers": 3}, {"stages": 0}, {"splits": 0}],
    ids=str,
)
def test_sizes_that_cannot_be_are_refused(sizes):
    with pytest.raises(ValueError, match=f"{next(iter(sizes))}="):
        mosaic.Tile(**sizes)
