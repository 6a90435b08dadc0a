"""Lower a kernel for CUDA with the jax at hand; needs no GPU and no CUDA plugin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

# Chips that are not there: what is compiled for, and what tracing must know of them.
ARCHITECTURES = {"h200": "sm_90a", "h100": "sm_90a", "a100": "sm_80"}
DEVICES = {"h200": "NVIDIA H200", "h100": "NVIDIA H100", "a100": "NVIDIA A100-SXM4-80GB"}
_CALLS = ("__gpu$xla.gpu.triton", "mosaic_gpu")


@dataclass(frozen=True)
class Program:
    """A function of arrays to compile, and the descriptions of its arguments."""

    name: str
    function: Callable[..., Any]
    arguments: dict[str, jax.ShapeDtypeStruct]


@dataclass(frozen=True)
class Lowered:
    """kernels: how many are called in what came out. error: a sentence, empty if it lowered."""

    target: str
    program: str
    kernels: int
    error: str = ""


def lower(target: str, program: Program) -> Lowered:
    """Lower one program, as far as it goes."""
    device = jax.sharding.AbstractDevice(DEVICES[target], 1, "cuda")
    mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
    try:
        with jax.sharding.use_abstract_mesh(mesh):
            traced = jax.jit(program.function).trace(**program.arguments)
            text = traced.lower(lowering_platforms=("cuda",)).as_text()
    except Exception as error:
        told = str(error).strip().splitlines() or [""]
        return Lowered(target, program.name, 0, f"{type(error).__name__}: {told[0]}"[:200])
    kernels = sum(text.count(name) for name in _CALLS)
    return Lowered(target, program.name, kernels, "" if kernels else "it calls no kernel")
