"""All the memory of a device, of which JAX's statistics tell only its own share."""

from __future__ import annotations

import ctypes
from typing import Any


def total_memory(device: Any) -> int | None:
    """Bytes, asked of the CUDA driver; None for another device, or without a driver."""
    if getattr(device, "platform", None) != "gpu":
        return None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:  # not NVIDIA's
        return None
    handle, found = ctypes.c_int(), ctypes.c_size_t()
    for status in (
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(handle), device.local_hardware_id),
        driver.cuDeviceTotalMem_v2(ctypes.byref(found), handle),
    ):
        if status != 0:
            return None
    return found.value
