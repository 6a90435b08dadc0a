"""A capacity plan as tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from paxkv.capacity.plan import GIB, KINDS, CapacityPlan


def plan_as_json(plan: CapacityPlan) -> dict[str, Any]:
    return asdict(plan) | {"slots": plan.slots}


def print_plan(plan: CapacityPlan, console: Console | None = None) -> None:
    console = console or Console()
    sizes = Table(title="Memory of one device", title_justify="left", show_header=False)
    sizes.add_column()
    sizes.add_column(justify="right")
    for label, text in _sizes(plan):
        sizes.add_row(label, text)
    console.print(sizes)
    held = Table(title="Requests at once", title_justify="left")
    held.add_column("")
    held.add_column(f"reserved at {plan.max_model_len:,} tokens", justify="right")
    held.add_column(f"paged at {plan.expected_len:,} tokens", justify="right")
    each = (plan.contiguous, plan.paged)
    held.add_row("requests", *(f"{h.requests:,}" for h in each), style="bold")
    for kind in KINDS:
        held.add_row(kind, *(f"{100 * h.slots[kind] / plan.slots:.1f} %" for h in each))
    console.print(held)
    console.print(
        "Shares of the pool when every request is half way through its answer. reserved: used "
        "later; internal: never used; external: too little for a reservation; tail: rest of a last "
        "page; free: open to any request.",
        highlight=False,
    )


def _sizes(plan: CapacityPlan) -> list[tuple[str, str]]:
    rows = [("bytes per token", f"{plan.bytes_per_token:,}")]
    if plan.model is not None:
        rows.append(("weights", f"{plan.model.weights / GIB:.2f} GiB"))
        rows.append(("activation peak, estimated", f"{plan.model.activations / GIB:.2f} GiB"))
    rows.append(("keys and values", f"{plan.kv_bytes / GIB:.2f} GiB"))
    rows.append((f"blocks of {plan.block_size} tokens", f"{plan.blocks:,}"))
    rows.append(("tokens", f"{plan.slots:,}"))
    return rows
