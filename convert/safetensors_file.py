"""One safetensors file, read piece by piece.

The `safetensors` library hands out whole tensors from a map whose pages stay resident; reading rows
and releasing them keeps the host's peak at one array. Format: https://github.com/huggingface/safetensors
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from convert.checkpoint import BFLOAT16, as_rows, row_chunks
from convert.mapped_file import MappedFile

_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": BFLOAT16,
}


@dataclass(frozen=True)
class StoredTensor:
    """Shape (row-major), stored type and byte offset of one tensor."""

    shape: tuple[int, ...]
    kind: str
    offset: int


class SafetensorsFile:
    """Tensors of `path` by name.

    Raises ValueError naming the file if its header is damaged or the file is shorter than the
    header says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        self.tensors = self._read_header()

    def _read_header(self) -> dict[str, StoredTensor]:
        if self._file.size < 8:
            raise ValueError(f"{self.path} is truncated: {self._file.size} bytes")
        (length,) = struct.unpack("<Q", self._file[slice(0, 8)])
        base = 8 + length
        if base > self._file.size:
            raise ValueError(
                f"{self.path} is truncated or no safetensors file: its header ends early"
            )
        try:
            header = json.loads(self._file[slice(8, base)])
            header.pop("__metadata__", None)
            tensors, ends = {}, [0]
            for name, entry in header.items():
                start, end = entry["data_offsets"]
                tensor = StoredTensor(tuple(entry["shape"]), entry["dtype"], base + start)
                tensors[name] = tensor
                ends.append(end)
                dtype = _DTYPES.get(tensor.kind)
                if not 0 <= start <= end:
                    raise ValueError(f"tensor {name}: bytes {start} to {end}")
                if dtype is not None and end - start != math.prod(tensor.shape) * dtype.itemsize:
                    raise ValueError(
                        f"tensor {name}: {end - start} bytes do not fit shape {list(tensor.shape)}"
                    )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{self.path} has a damaged header: {error}") from None
        if base + max(ends) > self._file.size:
            raise ValueError(
                f"{self.path} is truncated: {self._file.size} bytes, its header promises "
                f"{base + max(ends)}"
            )
        return tensors

    def dtype(self, name: str) -> np.dtype:
        """The stored type; ValueError naming the tensor if it is not a plain float."""
        kind = self.tensors[name].kind
        if kind not in _DTYPES:
            raise ValueError(
                f"{self.path}: tensor {name} has type {kind}; supported: {', '.join(_DTYPES)}"
            )
        return _DTYPES[kind]

    def rows(self, name: str) -> Iterator[np.ndarray]:
        """The tensor's rows in order, [some rows, elements per row], a few MiB at a time.

        Each piece is a view that is valid until the next one is asked for.
        """
        tensor, dtype = self.tensors[name], self.dtype(name)
        rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
        row_bytes = math.prod(tensor.shape) // rows * dtype.itemsize
        for chunk in row_chunks(rows, row_bytes):
            start, count = chunk.start * row_bytes, (chunk.stop - chunk.start) * row_bytes
            piece = self._file.view(tensor.offset + start, count).view(dtype)
            yield piece.reshape(chunk.stop - chunk.start, -1)
            self._file.release(tensor.offset + start, count)

    def read(self, name: str, out: np.ndarray) -> None:
        """Write the tensor into `out` (of its shape), a few MiB at a time."""
        target, row = as_rows(out), 0
        for piece in self.rows(name):
            target[row : row + len(piece)] = piece
            row += len(piece)
