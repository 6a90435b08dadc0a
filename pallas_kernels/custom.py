"""An attention kernel of the user's own as a back end: XLA writes and copies its pages."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import xla
from pallas_kernels.contract import STANDARD, AttentionInputs, AttentionOptions
from pallas_kernels.dispatch import Call
from pallas_kernels.tiles import prepare

Array = jax.Array


class CustomBackend:
    """One function with the signature of `pallas_kernels.ragged_paged_attention`.

    It gets the six arrays by position, `scale`, and of `window`, `softcap`, `sinks`, `k_scale`,
    `v_scale` and `return_lse` those that the call needs, by name. It declines a call by raising
    NotImplementedError with a sentence; one that lacks a parameter declines by that.

    Two are equal only if they are the same object: a program with the one never stands in for a
    program with the other, whatever their source.

    Attributes:
        name: for people.
        function: the kernel.
    """

    Config = type(None)
    page_layout = STANDARD
    prepare = staticmethod(prepare)
    write_kv = staticmethod(xla.write_kv)
    copy_pages = staticmethod(xla.copy_pages)

    def __init__(self, kernel: str | Callable[..., Any], option: str = "kernel") -> None:
        """`kernel`: a function, or "path/to/file.py:function". `option`: named in errors.

        Raises ValueError if there is no such file or function, or the file cannot be run.
        """
        self.option = option
        if isinstance(kernel, str):
            self.name, self.function = kernel, load(kernel, option)
        else:
            self.name = getattr(kernel, "__qualname__", type(kernel).__qualname__)
            self.function = kernel

    def __str__(self) -> str:
        return self.name

    def check(self, call: Call) -> None:
        """Trace and lower the kernel for the largest step and for a decode step of these sizes.

        Raises:
            NotImplementedError: the kernel declines.
            ValueError: it fails, or returns something else than it must.
        """
        for num_tokens in sorted({call.num_tokens, min(call.num_tokens, call.num_seqs)}):
            inputs = _described(call, num_tokens)
            options = AttentionOptions(call.head_dim**-0.5, call.window, call.softcap)
            try:
                jax.jit(lambda given, options=options: self.attention(given, options)).lower(inputs)
            except (NotImplementedError, _WrongResult):
                raise
            except Exception as error:
                raise ValueError(
                    f"{self.option}={self.name!r} failed when it was traced for q "
                    f"{list(inputs.q.shape)} and pages {list(inputs.v_pages.shape)}: "
                    f"{type(error).__name__}: {error}"
                ) from error

    def attention(
        self, inputs: AttentionInputs, options: AttentionOptions
    ) -> Array | tuple[Array, Array]:
        """Call the kernel, and check the shapes and dtypes of its results."""
        named = {
            "scale": options.scale,
            "window": options.window,
            "softcap": options.softcap,
            "sinks": inputs.sinks,
            "k_scale": inputs.k_scale,
            "v_scale": inputs.v_scale,
            "return_lse": options.return_lse or None,
        }
        needed = {name: value for name, value in named.items() if value is not None}
        missing = [name for name in needed if not _takes(self.function, name)]
        if missing:
            raise NotImplementedError(f"the kernel has no parameter {', '.join(missing)}")
        found = self.function(*inputs[:6], **needed)
        q = inputs.q
        wanted = [(q.shape, q.dtype)]
        if options.return_lse:
            wanted.append((q.shape[:2], np.dtype(np.float32)))
        results = found if options.return_lse else (found,)
        if _kinds(results) != wanted:
            raise _WrongResult(
                f"{self.option}={self.name!r} must return {_shown(wanted)}, shaped and typed like "
                f"q, got {_shown(_kinds(results))}"
            )
        return found


class _WrongResult(ValueError):
    """The kernel returns what it must not."""


def load(where: str, option: str) -> Callable[..., Any]:
    """The function named `path/to/file.py:function`; its file is run.

    Raises ValueError, naming `option`, if there is none.
    """
    path, _, name = where.rpartition(":")
    if not Path(path).is_file():
        raise ValueError(f"{option}={where!r} must be FILE.py:FUNCTION; there is no file {path!r}")
    # Registered, as dataclasses look their module up; under no name that anybody imports.
    spec = importlib.util.spec_from_file_location(f"kernel {path}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{option}={where!r} must be FILE.py:FUNCTION; {path!r} is not Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(
            f"{option}={where!r}: running {path} failed: {type(error).__name__}: {error}"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{option}={where!r}: {path} has no function {name!r}")
    return function


def _takes(function: Callable[..., Any], name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # one that is not written in Python
        return True
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _kinds(results: Any) -> list[Any]:
    """Shape and dtype of each array; the type of what is none."""
    if not isinstance(results, tuple):
        results = (results,)
    return [
        (x.shape, x.dtype) if isinstance(x, jax.Array | np.ndarray) else type(x).__name__
        for x in results
    ]


def _shown(kinds: list[Any]) -> str:
    shown = [x if isinstance(x, str) else f"{x[1]}{list(x[0])}" for x in kinds]
    return " and ".join(shown) or "nothing"


def _described(call: Call, num_tokens: int) -> AttentionInputs:
    """Descriptions of the arrays of a call."""

    def array(*shape: int, dtype: Any = jnp.int32) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    keys, values = STANDARD.shapes(call.num_pages, call.num_kv_heads, call.page_size, call.head_dim)
    factors = array(call.num_pages, call.page_size, call.num_kv_heads, dtype=jnp.float32)
    return AttentionInputs(
        array(num_tokens, call.num_heads, call.head_dim, dtype=call.dtype),
        array(*keys, dtype=call.page_dtype),
        array(*values, dtype=call.page_dtype),
        array(call.num_seqs, call.max_pages),
        array(call.num_seqs),
        array(call.num_seqs + 1),
        k_scale=factors if call.quantized else None,
        v_scale=factors if call.quantized else None,
        sinks=array(call.num_heads, dtype=jnp.float32) if call.sinks else None,
    )
