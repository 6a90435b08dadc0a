"""Peak host memory while a model is loaded: at most the model and 1.2 times its largest tensor."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_models as tiny

from convert import load_params, open_checkpoint
from paxkv.models.weights import describe, walk

ROWS = 320_000  # of the embedding: 78 MiB, well above the noise of an interpreter
MEASURE = """
import json, sys
import jax
import numpy as np
from convert import load_params, open_checkpoint

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

put = {"jax": jax.device_put, "copy": np.array}[sys.argv[2]]
jax.device_put(np.ones(8)).block_until_ready()
checkpoint = open_checkpoint(sys.argv[1])
with open("/proc/self/clear_refs", "w") as reset:
    reset.write("5")
before = peak()
params = load_params(checkpoint, put=put)
model = sum(array.nbytes for array in jax.tree.leaves(params))
print(json.dumps({"peak": peak() - before, "model": model}))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same model with a large embedding as a directory and as a float32 GGUF file."""
    folder = tmp_path_factory.mktemp("large")
    weights = tiny.tensors()
    weights["model.embed_tokens.weight"] = np.ones((ROWS, tiny.HIDDEN), np.float32)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    hf = tiny.write_hf(folder / "hf", weights, vocab_size=ROWS, tie_word_embeddings=False)
    return {"hf": hf, "gguf": tiny.write_gguf(folder / "m.gguf", weights)}


@pytest.mark.parametrize("put", ["jax", "copy"])
@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_peak_is_bounded(files: dict[str, Path], kind: str, put: str) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("needs Linux's /proc")
    command = [sys.executable, "-c", MEASURE, str(files[kind]), put]
    root = Path(__file__).parents[2]
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    measured = json.loads(out.stdout.splitlines()[-1])
    largest = ROWS * tiny.HIDDEN * 4
    assert measured["model"] > 2 * largest
    assert measured["peak"] <= measured["model"] + 1.2 * largest


def test_one_array_at_a_time_and_the_largest_first(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny.write_hf(tmp_path, tiny.tensors(tied=False)))
    sizes: list[int] = []
    load_params(checkpoint, put=lambda array: sizes.append(array.nbytes))
    assert len(sizes) == sum(1 for _ in walk(describe(checkpoint.config)))
    assert sizes == sorted(sizes, reverse=True)


def test_progress_counts_bytes(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny.write_hf(tmp_path, tiny.tensors()))
    seen: list[tuple[int, int]] = []
    tree = load_params(
        checkpoint, put=np.asarray, progress=lambda done, total: seen.append((done, total))
    )
    total = sum(array.nbytes for _, array in walk(tree))
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
