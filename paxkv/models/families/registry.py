"""Registry of families, by the names in checkpoints."""

from __future__ import annotations

from pathlib import Path

from paxkv.models.families.family import Family
from paxkv.models.families.gemma import GEMMA3
from paxkv.models.families.gemma2 import GEMMA2
from paxkv.models.families.llama import LLAMA, MISTRAL
from paxkv.models.families.qwen import QWEN2, QWEN3

FAMILIES = (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA2, GEMMA3)
_BY_NAME = {family.name: family for family in FAMILIES}
_BY_GGUF = {family.gguf: family for family in FAMILIES if family.gguf is not None}


def family_of(architecture: str) -> Family:
    """The family whose `name` is `architecture`, as `ModelConfig` has it; ValueError if none is."""
    return _find(architecture, _BY_NAME, "architecture")


def hf_family(model_type: object, source: Path | str) -> Family:
    """The family of a config.json. Raises ValueError naming the file `source`."""
    return _find(model_type, _BY_NAME, f"{source}: model_type")


def gguf_family(architecture: object, source: Path | str) -> Family:
    """The family of a GGUF file. Raises ValueError naming the file `source`."""
    return _find(architecture, _BY_GGUF, f"{source}: GGUF architecture")


def _find(name: object, families: dict[str, Family], what: str) -> Family:
    if isinstance(name, str) and name in families:
        return families[name]
    raise ValueError(
        f"{what} {name!r} is not supported; supported: {', '.join(families)}. To add a family, "
        f"describe it in a file of paxkv/models/families/ and list it in registry.py there"
    )
