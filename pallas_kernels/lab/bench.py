"""Times of a decode or prefill step by every implementation that takes it, beside the floor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.api import ragged_paged_attention
from pallas_kernels.contract import AttentionInputs, call_of
from pallas_kernels.dispatch import BACK_ENDS, choose, current_target
from pallas_kernels.lab.clock import Timing, copies_for, measure
from pallas_kernels.roofline import CHIPS, Chip, Heads, best_splits, decode, prefill

INTERPRETED = "interpreted on the CPU: its time says nothing"


@dataclass(frozen=True)
class Step:
    """`batch` sequences of `context` cached tokens, the last `new` of each being queries."""

    batch: int = 64
    context: int = 8192
    new: int = 1
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    page_size: int = 16
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        for name in ("batch", "context", "new", "heads", "kv_heads", "head_dim", "page_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} must be a multiple of kv_heads={self.kv_heads}")
        if self.new > self.context:
            raise ValueError(f"new={self.new} must be at most context={self.context}")

    @property
    def pages_per_sequence(self) -> int:
        return -(-self.context // self.page_size)

    @property
    def page_bytes(self) -> int:
        """Of keys and values together."""
        slots = self.batch * self.pages_per_sequence * self.page_size
        return 2 * slots * self.kv_heads * self.head_dim * np.dtype(self.dtype).itemsize

    @property
    def bytes(self) -> int:
        """That a call must move."""
        keys = 2 * self.batch * self.context * self.kv_heads * self.head_dim
        rows = 2 * self.batch * self.new * self.heads * self.head_dim
        return (keys + rows) * np.dtype(self.dtype).itemsize

    @property
    def flops(self) -> float:
        """Of the causal pairs."""
        pairs = self.new * (self.context - self.new) + self.new * (self.new + 1) / 2
        return 4.0 * self.batch * pairs * self.heads * self.head_dim

    def arrays(self, seed: int = 0) -> dict[str, jax.Array]:
        """Arguments of the contract, drawn on the device; pages stand in random order."""
        q_key, k_key, v_key = jax.random.split(jax.random.key(seed), 3)
        # One page drawn, all alike: drawing gigabytes takes several times their memory.
        num_pages = self.batch * self.pages_per_sequence + 1
        page = (1, self.kv_heads, self.page_size, self.head_dim)
        times = (num_pages, 1, 1, 1)
        order = 1 + np.random.default_rng(seed).permutation(num_pages - 1).astype(np.int32)
        tokens = self.batch * self.new
        dtype = jnp.dtype(self.dtype)
        return {
            "q": jax.random.normal(q_key, (tokens, self.heads, self.head_dim), dtype),
            "k_pages": jnp.tile(jax.random.normal(k_key, page, dtype), times),
            "v_pages": jnp.tile(jax.random.normal(v_key, page, dtype), times),
            "block_tables": jnp.asarray(order.reshape(self.batch, -1)),
            "kv_lens": jnp.full(self.batch, self.context, jnp.int32),
            "query_start": jnp.arange(self.batch + 1, dtype=jnp.int32) * self.new,
        }

    def floor(self, chip: Chip) -> float:
        """Seconds, from the data sheet (`pallas_kernels.roofline`), split as is best there."""
        shape = Heads(self.heads, self.kv_heads, self.head_dim, np.dtype(self.dtype).itemsize)
        if self.new == 1:
            splits = best_splits(chip, shape, self.batch, self.context)
            best = partial(decode, splits=splits, page_size=self.page_size)
            return best(chip, shape, self.batch, self.context).seconds
        return self.batch * prefill(chip, shape, self.new, self.context - self.new).seconds


@dataclass(frozen=True)
class Entry:
    """timing: None if it does not take the step, for the reason in `note`."""

    name: str
    timing: Timing | None
    note: str = ""


def bench(step: Step, kernel: Callable[..., Any] | None = None, name: str = "") -> Iterator[Entry]:
    """Time the given function, every back end and JAX's own decode kernel, in turn."""
    copies = copies_for(step.page_bytes)
    inputs = [step.arrays(seed) for seed in range(copies)]
    if kernel is not None:
        yield _entry(name, jax.jit(kernel), inputs, "")
    for backend in BACK_ENDS:
        if backend == "mosaic" and current_target() == "cpu":
            yield Entry(backend, None, "its interpreter takes minutes")
            continue
        call = call_of(AttentionInputs(**inputs[0]))
        try:
            choose(backend, call)
        except NotImplementedError as refusal:
            yield Entry(backend, None, str(refusal))
            continue
        note = INTERPRETED if backend != "xla" and current_target() == "cpu" else ""
        yield _entry(
            backend, jax.jit(partial(ragged_paged_attention, backend=backend)), inputs, note
        )
    yield _jax_entry(step, inputs)


def _entry(
    name: str, function: Callable[..., Any], inputs: list[dict[str, Any]], note: str
) -> Entry:
    try:
        return Entry(name, measure(function, inputs), note)
    except NotImplementedError as refusal:
        return Entry(name, None, str(refusal))


def _jax_entry(step: Step, inputs: list[dict[str, Any]]) -> Entry:
    name = "jax's paged_attention"
    if step.new != 1:
        return Entry(name, None, "decodes only")
    note = INTERPRETED if current_target() == "cpu" else ""
    try:
        attend, turned = jax_own(step, inputs)
        return Entry(name, measure(attend, turned), note)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return Entry(name, None, lines[0])


def jax_own(
    step: Step, inputs: list[dict[str, Any]]
) -> tuple[Callable[..., Any], list[dict[str, Any]]]:
    """`jax.experimental.pallas.ops.gpu.paged_attention`, and its arguments for the same step: it
    wants its pages turned and knows no scale.
    """
    splits = next((n for n in (16, 8, 4, 2, 1) if step.pages_per_sequence % n == 0), 1)
    at_once = next((n for n in (8, 4, 2, 1) if step.pages_per_sequence // splits % n == 0), 1)
    from jax.experimental.pallas.ops.gpu import paged_attention as own

    attend = partial(
        own.paged_attention,
        k_splits=splits,
        pages_per_compute_block=at_once,
        interpret=current_target() == "cpu",
    )
    scale = step.head_dim**-0.5
    turned = [
        {
            "q": (given["q"] * scale).astype(given["q"].dtype),
            "k_pages": jnp.swapaxes(given["k_pages"], 0, 1),
            "v_pages": jnp.swapaxes(given["v_pages"], 0, 1),
            "block_tables": given["block_tables"],
            "lengths": given["kv_lens"],
        }
        for given in inputs
    ]
    return attend, turned


def table(step: Step, entries: list[Entry], chip: Chip | None = None) -> str:
    """Markdown: microseconds, GB/s of the bytes that must move, share of the floor."""
    what = "decode" if step.new == 1 else f"{step.new} new tokens each"
    device = jax.local_devices()[0].device_kind
    lines = [
        f"{step.batch} × {step.context} tokens, {what}, {step.heads} heads over {step.kv_heads} of "
        f"{step.head_dim}, pages of {step.page_size}, {step.dtype}; on {device}",
        "",
        "| implementation | µs | GB/s | TFLOP/s |" + (f" of {chip.name}'s floor |" if chip else ""),
        "| --- | --- | --- | --- |" + (" --- |" if chip else ""),
    ]
    notes = []
    clocks: dict[str, list[str]] = {}
    for entry in entries:
        if entry.timing is not None:
            clocks.setdefault(entry.timing.clock, []).append(entry.name)
        if entry.note:
            notes.append(f"{entry.name}: {entry.note}")
        if entry.timing is None:
            cells = ["–"] * (4 if chip else 3)
        else:
            seconds = entry.timing.seconds
            cells = [
                f"{seconds * 1e6:.1f}",
                f"{step.bytes / seconds / 1e9:.1f}",
                f"{step.flops / seconds / 1e12:.2f}",
            ]
            cells += [f"{step.floor(chip) / seconds:.0%}"] if chip else []
        lines.append(f"| {entry.name} | " + " | ".join(cells) + " |")
    notes += [f"timed by {clock}: {', '.join(names)}" for clock, names in clocks.items()]
    return "\n".join([*lines, "", *notes]).rstrip() + "\n"


def chip_named(name: str) -> Chip:
    """A chip of the roofline, in any spelling.

    Raises:
        ValueError: none of that name.
    """
    found = {chip.lower().replace(" ", ""): held for chip, held in CHIPS.items()}
    key = name.lower().replace(" ", "").replace("-", "")
    if key not in found:
        raise ValueError(f"arch={name!r} is not one of {', '.join(found)}")
    return found[key]
