"""Checkpoint: common interface of all formats, and `open_checkpoint`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from convert.pull import resolve
from paxkv.models.config import ModelConfig

if TYPE_CHECKING:
    from paxkv.text.tokenizer import Tokenizer

CHUNK_BYTES = 2 << 20
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class Checkpoint(ABC):
    """Weights under canonical Hugging Face names, a configuration and a tokenizer.

    config: `ModelConfig`. dtype: what most of the weights are stored as (float32 for quantized
    files).
    """

    config: ModelConfig
    dtype: np.dtype

    @abstractmethod
    def names(self) -> list[str]:
        """Every tensor's canonical name."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Element counts, [out, in]."""

    @abstractmethod
    def tensor_dtype(self, name: str) -> np.dtype:
        """What `tensor` returns: the stored type, float32 for quantized tensors."""

    @abstractmethod
    def read(self, name: str, out: np.ndarray) -> None:
        """Write the tensor into `out` (of its shape, any float type), a few MiB at a time."""

    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """The tokenizer stored with the weights.

        Raises ValueError if there is none or its kind is not supported.
        """

    def most_common_dtype(self) -> np.dtype:
        """The type of most elements."""
        counts: Counter[np.dtype] = Counter()
        for name in self.names():
            counts[self.tensor_dtype(name)] += math.prod(self.shape(name))
        return counts.most_common(1)[0][0]

    def tensor(self, name: str) -> np.ndarray:
        """The whole tensor in a new array."""
        out = np.empty(self.shape(name), self.tensor_dtype(name))
        self.read(name, out)
        return out


def row_chunks(rows: int, bytes_per_row: int) -> Iterator[slice]:
    """Slices of at most `CHUNK_BYTES` (at least one row) that cover `rows`."""
    step = max(1, CHUNK_BYTES // max(1, bytes_per_row))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def as_rows(array: np.ndarray) -> np.ndarray:
    """View [rows, elements per row]; a vector is one row."""
    rows = array.shape[0] if array.ndim > 1 else 1
    return array.reshape(rows, math.prod(array.shape) // rows)


def _is_hugging_face(path: Path) -> bool:
    """Whether a directory is to be read as Hugging Face's, and not for a `.gguf` file in it."""
    if not (path / "config.json").exists():
        return False
    return any(path.glob("*.safetensors*")) or not any(path.glob("*.gguf"))


def open_checkpoint(
    model: str | Path,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    progress: bool = True,
) -> Checkpoint:
    """Open a known name, a hub id, a directory or a `.gguf` file.

    A directory with a config.json is read as safetensors; one without, or without safetensors, but
    with a single `.gguf` file, as that file. progress: show a bar while fetching. Errors of what is
    found there are ValueErrors that name file and tensor.
    """
    path = resolve(model, revision=revision, cache_dir=cache_dir, progress=progress)
    if path.is_dir() and not _is_hugging_face(path):
        found = sorted(path.glob("*.gguf"))
        if len(found) != 1:
            listing = ", ".join(file.name for file in found) or "none"
            raise ValueError(
                f"{path} has no config.json and not exactly one .gguf file (found: {listing}); "
                "give the .gguf file itself"
            )
        path = found[0]
    if path.is_dir():
        from convert.hf_checkpoint import HFCheckpoint

        return HFCheckpoint(path)
    if path.suffix != ".gguf":
        raise ValueError(f"{path} is neither a directory nor a .gguf file")
    from convert.gguf_checkpoint import GGUFCheckpoint

    return GGUFCheckpoint(path)
