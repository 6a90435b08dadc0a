"""The kernels that a function launches, with the arguments each gets, without running any."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core


@dataclass(frozen=True)
class Operand:
    """An argument of a kernel. value: an int32 array, else None: what it holds decides nothing."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    value: np.ndarray | None

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True)
class Launch:
    """One kernel. operands: inputs, then outputs; an output in place of an input is the same
    object as it.
    """

    kernel: str
    grid: tuple[int, int, int]
    operands: tuple[Operand, ...]

    def operand(self, name: str) -> Operand:
        """The one of that name."""
        return next(operand for operand in self.operands if operand.name == name)


def launches(
    function: Callable[..., Any], arguments: dict[str, Any], device: Any = None
) -> list[Launch]:
    """What `function(**arguments)` launches by Pallas, in order.

    Everything else runs on the CPU; kernels give zeros. Arguments are known by their names.

    Args:
        device: `jax.sharding.AbstractDevice` that the program is meant for.
    """
    arrays = {name: jnp.asarray(x) for name, x in arguments.items()}
    mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.jit(function).trace(**arrays)
    names = {id(x): name for name, x in arrays.items()}
    found: list[Launch] = []
    leaves = [arrays[name] for name in sorted(arrays)]
    _evaluate(traced.jaxpr.jaxpr, traced.jaxpr.consts, leaves, names, found)
    return found


def _evaluate(
    jaxpr: Any, consts: Iterable[Any], values: list[Any], names: dict[int, str], found: list[Launch]
) -> list[Any]:
    held = dict(zip(jaxpr.constvars, consts)) | dict(zip(jaxpr.invars, values))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, core.Literal) else held[variable]

    for equation in jaxpr.eqns:
        inputs = [read(variable) for variable in equation.invars]
        name = equation.primitive.name
        if name == "pallas_call":
            launch = _launch(equation, inputs, names)
            found.append(launch)
            outputs = [jnp.zeros(x.aval.shape, x.aval.dtype) for x in equation.outvars]
        elif name in ("jit", "pjit"):
            inner = equation.params["jaxpr"]
            consts = getattr(inner, "consts", ())
            inner = getattr(inner, "jaxpr", inner)
            outputs = _evaluate(inner, consts, inputs, names, found)
        else:
            parameters = equation.primitive.get_bind_params(equation.params)
            made = equation.primitive.bind(*inputs, **parameters)
            outputs = list(made) if equation.primitive.multiple_results else [made]
        held |= dict(zip(equation.outvars, outputs))
    return [read(variable) for variable in jaxpr.outvars]


def _launch(equation: Any, inputs: list[Any], names: dict[int, str]) -> Launch:
    operands = [
        Operand(
            names.get(id(x), f"input {index}"),
            x.shape,
            np.dtype(x.dtype),
            np.asarray(x) if x.dtype == jnp.int32 else None,
        )
        for index, x in enumerate(inputs)
    ]
    in_place = {output: source for source, output in equation.params["input_output_aliases"]}
    for index, variable in enumerate(equation.outvars):
        if index in in_place:
            operands.append(operands[in_place[index]])
            continue
        aval = variable.aval
        operands.append(Operand(f"output {index}", aval.shape, np.dtype(aval.dtype), None))
    grid = (*equation.params["grid_mapping"].grid, 1, 1, 1)[:3]
    return Launch(equation.params["jaxpr"].debug_info.func_name, grid, tuple(operands))
