"""Hugging Face directories: config.json, safetensors files, tokenizer files."""

from __future__ import annotations

import dataclasses
import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from convert.checkpoint import Checkpoint
from convert.hf_config import hf_config, read_json
from convert.hf_tokenizer import eos_id, hf_tokenizer
from convert.safetensors_file import SafetensorsFile
from convert.token_ids import known_ids

if TYPE_CHECKING:
    from paxkv.text.tokenizer import Tokenizer

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_EMBED, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_RECOMPUTED = ".rotary_emb.inv_freq"

logger = logging.getLogger(__name__)


def _indexed(path: Path) -> dict[str, SafetensorsFile]:
    """Exactly the (tensor, file) pairs of the index; nothing else in these files is looked at."""
    weight_map = read_json(path / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{path / _INDEX} has no weight_map")
    files: dict[str, SafetensorsFile] = {}
    for tensor, name in weight_map.items():
        if name not in files:
            if not isinstance(name, str) or Path(name).name != name:
                raise ValueError(f"{path / _INDEX}: {name!r} is not a plain file name")
            if not (path / name).is_file():
                raise ValueError(f"{path / name} is missing, but the index names it for {tensor}")
            files[name] = SafetensorsFile(path / name)
        if tensor not in files[name].tensors:
            raise ValueError(f"tensor {tensor} is missing in {path / name}, where the index has it")
    return {tensor: files[name] for tensor, name in weight_map.items()}


def _single(path: Path) -> SafetensorsFile:
    """model.safetensors, or the only safetensors file there is."""
    if (path / _SINGLE).is_file():
        return SafetensorsFile(path / _SINGLE)
    found = sorted(file.name for file in path.glob("*.safetensors"))
    if len(found) == 1:
        return SafetensorsFile(path / found[0])
    if found:
        raise ValueError(
            f"{path} holds several safetensors files ({', '.join(found)}) but neither {_INDEX} nor "
            f"{_SINGLE}: which one is meant is not clear"
        )
    other = sorted(file.name for file in path.glob("*.bin"))
    hint = f" (pickled files such as {other[0]} are never read)" if other else ""
    raise ValueError(f"{path} holds no safetensors file{hint}")


class HFCheckpoint(Checkpoint):
    """A directory as Hugging Face's `save_pretrained` writes it.

    With an index, the index decides and other files are ignored; else model.safetensors is read,
    or the only safetensors file. Raises ValueError naming files and tensors that do not fit.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        config = hf_config(read_json(path / "config.json"), path / "config.json")
        end = eos_id(path)
        ends = [*config.eos_token_ids, *([] if end is None else [end])]
        self.config = dataclasses.replace(
            config, eos_token_ids=known_ids(path, "eos_token", ends, config.vocab_size)
        )
        if (path / _INDEX).is_file():
            source = _indexed(path)
        else:
            file = _single(path)
            source = dict.fromkeys(file.tensors, file)
        self._source = {
            name: file for name, file in source.items() if not name.endswith(_RECOMPUTED)
        }
        if self.config.tie_word_embeddings and {_EMBED, _HEAD} <= self._source.keys():
            self._resolve_head()
        if not self._source:
            raise ValueError(f"{path} holds no tensors")
        self.dtype = self.most_common_dtype()

    def _resolve_head(self) -> None:
        """A stored head of a tied model: drop a copy of the embedding, else keep it, as
        transformers does."""
        if self._same(_EMBED, _HEAD):
            del self._source[_HEAD]
            return
        logger.warning(
            "%s: tie_word_embeddings is set, but %s differs from %s; the stored head is used",
            self.path,
            _HEAD,
            _EMBED,
        )
        self.config = dataclasses.replace(self.config, tie_word_embeddings=False)

    def _same(self, left: str, right: str) -> bool:
        if self.shape(left) != self.shape(right):
            return False
        rows = [self._source[name].rows(name) for name in (left, right)]
        return all(np.array_equal(a, b) for a, b in zip(*rows, strict=True))

    def names(self) -> list[str]:
        return list(self._source)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._source[name].tensors[name].shape

    def tensor_dtype(self, name: str) -> np.dtype:
        return self._source[name].dtype(name)

    def read(self, name: str, out: np.ndarray) -> None:
        self._source[name].read(name, out)

    @functools.cache  # noqa: B019
    def tokenizer(self) -> Tokenizer:
        return hf_tokenizer(self.path)
