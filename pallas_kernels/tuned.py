"""Configurations found by timing on a device, kept in a file; `paxkv bench kernel --autotune` fills
it, and a back end's default choice reads it.

An entry counts for one kind of device, one version of jax and one set of static shapes. Results
still depend on static shapes alone, never on what a batch holds.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import asdict, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pallas_kernels.dispatch import Call

FORMAT = 1

_log = logging.getLogger(__name__)
_path: Path | None = None


def cache_path() -> Path | None:
    """Where entries are read from; None without a home directory, unless `use` named a file."""
    if _path is not None:
        return _path
    try:
        return Path.home() / ".cache" / "pallas_kernels" / "tuned.json"
    except RuntimeError:  # no HOME, and a user without an entry in the passwd file
        return None


def use(path: Path | None) -> None:
    """Read entries from another file from now on, None for the default; a program compiled already
    stays as it is."""
    global _path
    _path = None if path is None else Path(path)


def fingerprint() -> str:
    """Fingerprint of the file of entries, empty without one: programs depend on it."""
    path = cache_path()
    try:
        return "" if path is None else hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def device_kind() -> str:
    """Kind of the device that a program traced now is meant for."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.local_devices()[0].device_kind if device is None else device.device_kind


def key_of(call: Call, device: str) -> str:
    """Key of device and shapes, without the number of pages, which changes no choice."""
    shapes = {
        field.name: getattr(call, field.name)
        for field in fields(Call)
        if field.name not in ("num_pages", "config", "target", "capability")
    }
    for name in ("dtype", "page_dtype"):
        shapes[name] = np.dtype(shapes[name]).name
    return json.dumps({"device": device, **shapes}, sort_keys=True)


def lookup(call: Call) -> dict[str, dict[str, int]] | None:
    """The fields of each part of the configuration found for a call, if any."""
    path = cache_path()
    if path is None:
        return None
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        return None
    entries = _entries(path, changed)
    return entries.get(key_of(call, device_kind())) if entries else None


def store(path: Path, call: Call, config: Any, seconds: float) -> None:
    """Add an entry; entries of another version of jax, or what cannot be read, are dropped.

    A link is followed. Raises ValueError if the path names what is no regular file.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no regular file, tuned sizes cannot be kept there")
    held = _read(path) if path.exists() else {}
    entry = {"config": asdict(config), "seconds": seconds}
    held[key_of(call, device_kind())] = entry
    text = json.dumps({"format": FORMAT, "jax": jax.__version__, "entries": held}, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}.new")
    fresh.write_text(text + "\n", encoding="utf-8")
    os.replace(fresh, path)


@lru_cache(maxsize=8)
def _entries(path: Path, changed: int) -> dict[str, dict[str, dict[str, int]]]:
    """By key; read again when the file has changed."""
    return {key: entry["config"] for key, entry in _read(path).items()}


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Entries as they stand in the file; none, and a warning, if it is stale or broken."""
    try:
        held = json.loads(path.read_bytes())
        if held["format"] != FORMAT or held["jax"] != jax.__version__:
            _log.warning(
                "%s is of jax %s, format %s; ignored on jax %s: run paxkv bench kernel --autotune",
                path,
                held["jax"],
                held["format"],
                jax.__version__,
            )
            return {}
        entries = held["entries"]
        for entry in entries.values():
            for part in entry["config"].values():
                if not all(type(value) is int for value in part.values()):
                    raise ValueError(f"{part} must be integers")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning("%s cannot be read and is ignored: %r", path, error)
        return {}
    return entries
