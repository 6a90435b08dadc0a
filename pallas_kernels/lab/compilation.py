"""Lowering of a kernel for CUDA and, with the plugin, compilation for an absent GPU."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.lab.bench import Step
from pallas_kernels.lab.lowering import DEVICES, Program, lower


def compile_kernel(attend: Callable[..., Any], step: Step, arch: str) -> int:
    """Print what became of it; 1 if it does not lower or compile, or spills registers."""
    if arch not in DEVICES:
        raise SystemExit(f"arch={arch!r}: compiled can be for {', '.join(DEVICES)}")
    program = Program("kernel", lambda **arrays: attend(**arrays), described(step))
    lowered = lower(arch, program)
    if lowered.error:
        print(f"does not lower for {arch}: {lowered.error}")
        return 1
    print(f"lowered for {arch} by jax {jax.__version__}; kernels: {lowered.kernels}")
    missing = _missing()
    if missing:
        print(f"not compiled: {missing}; benchmarks/offline_compile.sh installs it")
        return 0
    return _compile(program, arch)


def described(step: Step) -> dict[str, jax.ShapeDtypeStruct]:
    """The arguments of the contract, without contents."""
    shaped = jax.ShapeDtypeStruct
    num_pages = step.batch * step.pages_per_sequence + 1
    pages = shaped((num_pages, step.kv_heads, step.page_size, step.head_dim), jnp.dtype(step.dtype))
    return {
        "q": shaped((step.batch * step.new, step.heads, step.head_dim), jnp.dtype(step.dtype)),
        "k_pages": pages,
        "v_pages": pages,
        "block_tables": shaped((step.batch, step.pages_per_sequence), jnp.int32),
        "kv_lens": shaped((step.batch,), jnp.int32),
        "query_start": shaped((step.batch + 1,), jnp.int32),
    }


def _missing() -> str:
    """Missing requirements of compilation."""
    tools = [tool for tool in ("ptxas", "cuobjdump") if shutil.which(tool) is None]
    try:
        from pallas_kernels.lab.offline import device_of

        device_of("h200")
    except Exception:
        return "jax has no CUDA plugin here"
    return f"{' and '.join(tools)} not found" if tools else ""


def _compile(program: Program, arch: str) -> int:
    from pallas_kernels.lab.offline import compile_for, table

    with tempfile.TemporaryDirectory() as dump:
        options = {"xla_dump_to": dump, "xla_dump_emitter_re": "ptx"}
        rows = compile_for(arch, program, Path(dump), ("",), options)
    print(table(rows), end="")
    return 1 if any(row.spills for row in rows) or not rows else 0
