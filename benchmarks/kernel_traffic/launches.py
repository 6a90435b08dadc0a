"""The kernels that a function launches, with the arguments each gets, without running any."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

# Primitives that are a function of their own, and where they hold it.
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "custom_vmap_call": "call"}


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
    names = _Names(arrays)
    found: list[Launch] = []
    leaves = [arrays[name] for name in sorted(arrays)]
    _evaluate(traced.jaxpr.jaxpr, traced.jaxpr.consts, leaves, names, found)
    return found


class _Names:
    """Of arrays, by identity; a reshaped array keeps its name."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        # With the array, which keeps its identity from being another's.
        self._held = {id(x): (name, x) for name, x in arrays.items()}

    def of(self, array: Any) -> str | None:
        """None for one without a name."""
        name, _ = self._held.get(id(array), (None, None))
        return name

    def hand_on(self, source: Any, made: Any) -> None:
        """`made` gets the name of `source`."""
        name = self.of(source)
        if name is not None:
            self._held[id(made)] = name, made


def _evaluate(
    jaxpr: Any, consts: Iterable[Any], values: list[Any], names: _Names, found: list[Launch]
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
        elif name == "mpmd_map":
            found.append(_mosaic_launch(equation, inputs, names))
            outputs = [jnp.zeros(x.aval.shape, x.aval.dtype) for x in equation.outvars]
        elif name in _CALLS:
            inner = equation.params[_CALLS[name]]
            consts = getattr(inner, "consts", ())
            inner = getattr(inner, "jaxpr", inner)
            outputs = _evaluate(inner, consts, inputs, names, found)
        else:
            parameters = equation.primitive.get_bind_params(equation.params)
            made = equation.primitive.bind(*inputs, **parameters)
            outputs = list(made) if equation.primitive.multiple_results else [made]
        if name == "reshape":
            names.hand_on(inputs[0], outputs[0])
        held |= dict(zip(equation.outvars, outputs))
    return [read(variable) for variable in jaxpr.outvars]


def _launch(equation: Any, inputs: list[Any], names: _Names) -> Launch:
    operands = _inputs(inputs, names)
    in_place = {output: source for source, output in equation.params["input_output_aliases"]}
    for index, variable in enumerate(equation.outvars):
        operands.append(
            operands[in_place[index]] if index in in_place else _output(index, variable.aval)
        )
    grid = (*equation.params["grid_mapping"].grid, 1, 1, 1)[:3]
    return Launch(equation.params["jaxpr"].debug_info.func_name, grid, tuple(operands))


def _mosaic_launch(equation: Any, inputs: list[Any], names: _Names) -> Launch:
    """Of Mosaic GPU, whose last axis is the x of CUDA."""
    (mesh,) = equation.params["meshes"]
    if equation.params["input_output_aliases"]:
        raise NotImplementedError(f"{mesh.kernel_name} writes in place")
    operands = _inputs(inputs, names)
    operands += [_output(index, variable.aval) for index, variable in enumerate(equation.outvars)]
    x, y, z = (*reversed(mesh.grid), 1, 1, 1)[:3]
    return Launch(mesh.kernel_name, (x, y, z), tuple(operands))


def _inputs(inputs: list[Any], names: _Names) -> list[Operand]:
    return [
        Operand(
            names.of(x) or f"input {index}",
            x.shape,
            np.dtype(x.dtype),
            np.asarray(x) if x.dtype == jnp.int32 else None,
        )
        for index, x in enumerate(inputs)
    ]


def _output(index: int, aval: Any) -> Operand:
    return Operand(f"output {index}", aval.shape, np.dtype(aval.dtype), None)
