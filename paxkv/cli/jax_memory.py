"""JAX's share of the device, set before it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
# The user has decided if one of these is set.
OTHERS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_ALLOCATOR")
BY_NUMBER = ("kv_cache_memory_bytes", "num_gpu_blocks_override")
MOST = 0.95


def set_share(engine_args: Mapping[str, Any]) -> None:
    """Let JAX have as much of the device as `gpu_memory_utilization` says, where it would take
    three quarters. A cache whose size is given by number gets what it needs, as it needs it.

    What the environment says already stays. JAX reads it when its first device is asked for.
    """
    from paxkv.engine.config import EngineConfig

    if any(name in os.environ for name in (FRACTION, *OTHERS)):
        return
    share = engine_args.get("gpu_memory_utilization", EngineConfig.gpu_memory_utilization)
    if any(engine_args.get(name) is not None for name in BY_NUMBER):
        os.environ.setdefault(PREALLOCATE, "false")
        share = MOST
    os.environ[FRACTION] = str(share)
