"""The header of a GGUF file: metadata and where each tensor lies.

The `gguf` library's reader makes several numpy objects per vocabulary string (4 s for 49,152 tokens
on a slow machine); this one reads the same header in a fraction of a second. Constants, block sizes
and dequantization are the library's. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, dequantize

from convert.mapped_file import MappedFile

_SCALARS = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
}
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True)
class GGUFTensor:
    """Where one tensor lies: `shape` is row-major ([out, in]), `row_bytes` stored bytes per row."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    row_bytes: int

    @property
    def rows(self) -> int:
        return self.shape[0] if len(self.shape) > 1 else 1


class _Cursor:
    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.offset = 0

    def _take(self, count: int) -> int:
        start, self.offset = self.offset, self.offset + count
        if self.offset > self.file.size:
            raise ValueError(f"{self.file.path} is truncated: its header ends early")
        return start

    def number(self, dtype: str) -> Any:
        kind = np.dtype(dtype)
        start = self._take(kind.itemsize)
        return np.frombuffer(self.file[start : start + kind.itemsize], kind)[0].item()

    def string(self) -> str:
        start = self._take(8)
        (length,) = struct.unpack("<Q", self.file[start : start + 8])
        start = self._take(length)
        return self.file[start : start + length].decode("utf-8", errors="surrogateescape")

    def value(self, kind: int) -> Any:
        if kind == GGUFValueType.STRING:
            return self.string()
        if kind == GGUFValueType.ARRAY:
            inner, count = self.number("<u4"), self.number("<u8")
            if inner in _SCALARS:
                dtype = np.dtype(_SCALARS[inner])
                start = self._take(dtype.itemsize * count)
                return np.frombuffer(self.file[start : self.offset], dtype).tolist()
            if inner == GGUFValueType.ARRAY:
                raise ValueError(f"{self.file.path}: a metadata list of lists is not supported")
            return [self.value(inner) for _ in range(count)]
        if kind in _SCALARS:
            return self.number(_SCALARS[GGUFValueType(kind)])
        raise ValueError(f"{self.file.path}: metadata value of unknown type {kind}")


def _tensor_kind(path: Any, name: str, raw: int) -> GGMLQuantizationType:
    """The tensor type, if `gguf.dequantize` knows it.

    Raises ValueError naming tensor and type otherwise.
    """
    try:
        kind = GGMLQuantizationType(raw)
        _, size = GGML_QUANT_SIZES[kind]
        dequantize(np.zeros((1, size), np.uint8), kind)
    except (ValueError, KeyError):
        raise ValueError(f"{path}: tensor {name!r} has the unknown type number {raw}") from None
    except NotImplementedError:
        raise ValueError(
            f"{path}: tensor {name!r} has type {kind.name}, which cannot be dequantized"
        ) from None
    return kind


def read_header(file: MappedFile) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
    """Metadata by key and tensors by GGUF name.

    Raises ValueError for a file that is not GGUF version 2 or 3, is truncated, or has a tensor of a
    type that `gguf.dequantize` does not know.
    """
    if file[slice(0, 4)] != b"GGUF":
        raise ValueError(f"{file.path} is not a GGUF file")
    cursor = _Cursor(file)
    cursor.offset = 4
    version = cursor.number("<u4")
    if version not in (2, 3):
        raise ValueError(f"{file.path}: GGUF version {version} is not supported (2 and 3 are)")
    num_tensors, num_fields = cursor.number("<u8"), cursor.number("<u8")
    metadata: dict[str, Any] = {}
    for _ in range(num_fields):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.number("<u4"))

    found = []
    for _ in range(num_tensors):
        name = cursor.string()
        dims = [cursor.number("<u8") for _ in range(cursor.number("<u4"))]
        found.append((name, tuple(reversed(dims)), cursor.number("<u4"), cursor.number("<u8")))

    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"{file.path}: general.alignment={alignment!r} must be at least 1")
    base = math.ceil(cursor.offset / alignment) * alignment
    kinds: dict[int, GGMLQuantizationType] = {}
    tensors: dict[str, GGUFTensor] = {}
    for name, shape, raw, offset in found:
        if raw not in kinds:
            kinds[raw] = _tensor_kind(file.path, name, raw)
        block, size = GGML_QUANT_SIZES[kinds[raw]]
        if not shape or min(shape) < 1:
            raise ValueError(f"{file.path}: tensor {name!r} has no elements")
        if shape[-1] % block:
            raise ValueError(
                f"{file.path}: tensor {name!r} has rows of {shape[-1]} elements, "
                f"not a multiple of {kinds[raw].name}'s block of {block}"
            )
        tensor = GGUFTensor(name, kinds[raw], shape, base + offset, shape[-1] // block * size)
        if tensor.offset + tensor.row_bytes * math.prod(shape[:-1]) > file.size:
            raise ValueError(f"{file.path} is truncated: tensor {name!r} ends after the file does")
        if name in tensors:
            raise ValueError(f"{file.path} holds tensor {name!r} twice")
        tensors[name] = tensor
    return metadata, tensors
