"""From a model's name to files on this machine."""

from __future__ import annotations

from pathlib import Path


def resolve(
    model: str | Path, revision: str | None = None, cache_dir: str | Path | None = None
) -> Path:
    path = Path(model)
    if path.exists():
        return path
    raise ValueError(f"model {model} not found")
