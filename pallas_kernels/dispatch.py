"""Which back end computes a call: each is asked in turn, and one declines with a sentence."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

if TYPE_CHECKING:
    from pallas_kernels.contract import Backend
    from pallas_kernels.custom import CustomBackend

# In the order in which "auto" asks: triton first, for it covers more chips and more calls, and
# mosaic has not run on a GPU.
BACK_ENDS = {
    "triton": "pallas_kernels.triton",
    "mosaic": "pallas_kernels.mosaic",
    "xla": "pallas_kernels.xla",
}
_REASON = "the first that covers the call"
_REASONS = {"triton": f"{_REASON}; mosaic is asked after it until it has run on a GPU"}
# Runs on every platform.
_REFERENCE = "xla"

# Of devices that one compiles for without having them.
_CAPABILITY = {"A100": 80, "A10": 86, "RTX 4090": 89, "L4": 89, "H100": 90, "H200": 90}

_log = logging.getLogger(__name__)


def current_target() -> str:
    """The platform that a program traced now is meant for: that of the abstract device, if one is
    set (compiling for a machine that is not there), else of JAX's default back end.
    """
    device = _abstract_device()
    platform = device.platform if device is not None else jax.default_backend()
    return "cuda" if platform == "gpu" else platform


def current_capability() -> int:
    """Compute capability of the CUDA device, 90 for sm_90; 0 without one or if not known."""
    device = _abstract_device()
    if device is not None:
        known = (value for name, value in _CAPABILITY.items() if name in device.device_kind)
        return next(known, 0)
    if current_target() != "cuda":
        return 0
    return int(str(jax.local_devices()[0].compute_capability).replace(".", ""))


@dataclass(frozen=True)
class Call:
    """What is static about a call of the contract: all that a choice may depend on.

    Attributes:
        num_tokens, num_seqs, num_heads, num_kv_heads, head_dim: sizes of the queries.
        num_pages, page_size, max_pages: of the pages; `max_pages` is the width of the block tables.
        dtype, page_dtype: of the queries and of the pages.
        quantized: whether the pages come with factors.
        window, softcap, sinks: the options of the same names; whether there are sinks.
        config: tuning asked for by the caller.
        target: platform the program is compiled for, `"cpu"` or `"cuda"`; by default JAX's own.
        capability: of the CUDA device, 90 for sm_90; 0 if not known.
    """

    num_tokens: int
    num_seqs: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_pages: int
    page_size: int
    max_pages: int
    dtype: np.dtype
    page_dtype: np.dtype
    quantized: bool = False
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    config: Any = None
    target: str = field(default_factory=current_target)
    capability: int = field(default_factory=current_capability)

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True)
class Choice:
    """A back end, and why.

    Attributes:
        backend: its name, or what is no part of this package.
        reason: a sentence.
        declined: (name, sentence) of each that was asked before and declined.
    """

    backend: str | CustomBackend
    reason: str
    declined: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        asked = "".join(f"; {name}: {sentence}" for name, sentence in self.declined)
        return f"{self.backend} ({self.reason}{asked})"


def choose(backend: str | CustomBackend, call: Call) -> Choice:
    """Decide on a back end; the same call always gets the same answer.

    Raises:
        ValueError: an unknown name.
        NotImplementedError: the named back end does not cover the call, or cannot be imported.
    """
    if not isinstance(backend, str):
        backend.check(call)
        return Choice(backend, "a kernel of your own; pages are written and copied by xla")
    choice = _choose(backend, call)
    _log_once(choice)
    return choice


def module_of(backend: str | CustomBackend) -> Backend:
    """What computes the contract: the module behind a name, imported when first asked for."""
    if not isinstance(backend, str):
        return backend
    if backend not in BACK_ENDS:
        known = ", ".join(repr(name) for name in ("auto", *BACK_ENDS))
        raise ValueError(f"backend={backend!r} is unknown; available: {known}")
    return cast("Backend", import_module(BACK_ENDS[backend]))


@lru_cache(maxsize=256)
def _choose(backend: str, call: Call) -> Choice:
    if backend != "auto":
        _ask(backend, call)
        return Choice(backend, "asked for by name")
    declined = []
    for name in BACK_ENDS:
        try:
            if name != _REFERENCE and call.target != "cuda":
                raise NotImplementedError(f"its kernels are for NVIDIA GPUs, not for {call.target}")
            _ask(name, call)
        except NotImplementedError as refusal:
            declined.append((name, str(refusal)))
        else:
            return Choice(name, _REASONS.get(name, _REASON), tuple(declined))
    raise NotImplementedError("; ".join(f"{name}: {sentence}" for name, sentence in declined))


def _ask(backend: str, call: Call) -> None:
    """Raise NotImplementedError, with a sentence, if the back end does not cover the call."""
    try:
        module = module_of(backend)
    except (ImportError, AttributeError) as error:
        # The parts of Pallas that a back end stands on come and go between versions of JAX.
        raise NotImplementedError(
            f"it cannot be imported with jax {jax.__version__}: {error}"
        ) from error
    if call.config is not None and not isinstance(call.config, module.Config):
        raise NotImplementedError(
            f"config is a {type(call.config).__module__}.{type(call.config).__name__}, "
            f"not {module.Config.__module__}.Config"
        )
    module.check(call)


@lru_cache(maxsize=256)
def _log_once(choice: Choice) -> None:
    _log.info("attention: %s", choice)


def _abstract_device() -> Any:
    return jax.sharding.get_abstract_mesh().abstract_device
