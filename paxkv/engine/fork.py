"""Detection of forked processes, in which JAX would hang: its threads do not survive fork()."""

from __future__ import annotations

import os
import sys

_in_use = False
_inherited = False


def mark_in_use() -> None:
    """Forbid engines in processes forked from now on."""
    global _in_use
    _in_use = True


def is_forked() -> bool:
    """Whether this process was forked from one that had started JAX."""
    return _inherited


def refuse_forked() -> None:
    """Raise RuntimeError if an engine cannot run in this process."""
    if _inherited:
        raise RuntimeError(
            "this process was forked from one in which JAX was running, and JAX's threads do not "
            'survive a fork: start it with multiprocessing.get_context("spawn") and make the LLM '
            "in it"
        )


def _note_fork() -> None:
    global _inherited
    # No function of JAX's: another thread may have held its lock when the process was forked.
    bridge = sys.modules.get("jax._src.xla_bridge")
    _inherited = _inherited or _in_use or bool(getattr(bridge, "_backends", None))


os.register_at_fork(after_in_child=_note_fork)
