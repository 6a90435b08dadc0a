"""GGUF files."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from gguf import GGMLQuantizationType, dequantize

from convert.checkpoint import BFLOAT16, Checkpoint, as_rows, row_chunks
from convert.fields import Fields
from convert.gguf_config import gguf_config
from convert.gguf_header import GGUFTensor, read_header
from convert.gguf_keys import check_kind
from convert.gguf_names import canonical_name
from convert.mapped_file import MappedFile
from paxkv.models.families.registry import gguf_family

if TYPE_CHECKING:
    from paxkv.text.tokenizer import Tokenizer

_STORED_AS = {
    GGMLQuantizationType.F32: np.dtype(np.float32),
    GGMLQuantizationType.F16: np.dtype(np.float16),
    GGMLQuantizationType.BF16: BFLOAT16,
}


def rotary_order(num_heads: int, rows: int) -> np.ndarray:
    """For each stored row of a q or k tensor, the row Hugging Face keeps it in.

    llama.cpp rotates neighboring rows of a head, (0, 1), (2, 3), …; Hugging Face rotates halves,
    (0, d/2), (1, d/2 + 1), …; `num_heads` is the tensor's own head count (KV heads for k).
    """
    return np.arange(rows).reshape(num_heads, 2, rows // num_heads // 2).swapaxes(1, 2).reshape(-1)


class GGUFCheckpoint(Checkpoint):
    """A memory-mapped GGUF file under Hugging Face's tensor names and row order."""

    def __init__(self, path: Path) -> None:
        self._file = MappedFile(path)
        self._metadata, stored = read_header(self._file)
        general = Fields(path, self._metadata)
        self.family = gguf_family(general.text("general.architecture", ""), path)
        check_kind(general)
        freqs = stored.pop("rope_freqs.weight", None)
        self._tensors = {
            canonical_name(name, self.family): tensor for name, tensor in stored.items()
        }
        factors = None if freqs is None else self._values(freqs, slice(0, 1)).reshape(-1)
        self.config = gguf_config(path, self._metadata, self._shapes(), factors)
        self.dtype = self.most_common_dtype()

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def tensor_dtype(self, name: str) -> np.dtype:
        return _STORED_AS.get(self._tensors[name].kind, np.dtype(np.float32))

    def _values(self, tensor: GGUFTensor, rows: slice) -> np.ndarray:
        """Rows in stored order, [rows, elements per row]."""
        start = tensor.offset + rows.start * tensor.row_bytes
        count = (rows.stop - rows.start) * tensor.row_bytes
        raw = self._file.view(start, count)
        stored_as = _STORED_AS.get(tensor.kind)
        if stored_as is not None:
            values = raw.view(stored_as)
        else:  # blocks never cross rows; one long row spares the library's loop over groups of 16
            values = dequantize(raw.reshape(1, -1), tensor.kind)
        return values.reshape(rows.stop - rows.start, tensor.shape[-1])

    def _heads(self, name: str) -> int | None:
        """How many heads the rows of `name` are permuted in, None if they are not."""
        if not self.family.gguf_pairs:
            return None
        if ".q_proj." in name:
            return self.config.num_heads
        return self.config.num_kv_heads if ".k_proj." in name else None

    def read(self, name: str, out: np.ndarray) -> None:
        tensor = self._tensors[name]
        heads = self._heads(name)
        if heads is not None and len(tensor.shape) == 1:
            out[rotary_order(heads, tensor.shape[0])] = self._values(tensor, slice(0, 1))[0]
            return
        target = as_rows(out)
        order = None if heads is None else rotary_order(heads, tensor.rows)
        for rows in row_chunks(tensor.rows, 4 * tensor.shape[-1]):
            values = self._values(tensor, rows)
            target[rows if order is None else order[rows]] = values
            del values
            self._file.release(
                tensor.offset + rows.start * tensor.row_bytes,
                (rows.stop - rows.start) * tensor.row_bytes,
            )

    @functools.cache  # noqa: B019
    def tokenizer(self) -> Tokenizer:
        from convert.gguf_tokenizer import gguf_tokenizer

        return gguf_tokenizer(self._file.path, self._metadata)
