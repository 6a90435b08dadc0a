"""The figures of `run_paging` as tables and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.studies.paging.job import PAGED, SYSTEM_REQUESTS, SYSTEM_TOKENS
from paxkv.bench.figures import COLORS, FigureTable, require_matplotlib, write_picture
from paxkv.output_file import OutputFile

KINDS = ("used", "reserved", "internal", "external", "tail", "free")
# PagedAttention paper, section 6.3: figure 15 for Alpaca, the text for ShareGPT.
PAPER_SAVED = {
    "Alpaca-like": {"parallel": "6–10 %", "beam": "38–55 %"},
    "ShareGPT-like": {"parallel": "16–31 %", "beam": "44–66 %"},
}


# Same paper, figures 13 (OPT-13B, ShareGPT) and 2, in the order of the allocators.
PAPER_HELD = (
    "The PagedAttention paper has for its systems Orca (Max), Orca (Oracle), Orca (Pow2) and vLLM "
    "7.00, 13.62, 9.81 and 30.42 requests held, and 20.4, 38.2, 26.8 and 96.3 % of memory used."
)


def paging_tables(report: dict[str, Any]) -> list[FigureTable]:
    tables: list[FigureTable] = []
    for name, trace in report["traces"].items():
        tables += _allocators(name, trace, report["job"])
    tables.append(_block_sizes(report["traces"]))
    shared = {n: t["sharing"] for n, t in report["traces"].items() if "sharing" in t}
    if shared:
        tables.append(_sharing(shared))
    if report.get("system_prompt"):
        tables.append(_system_prompt(report["system_prompt"]))
    return tables


def _allocators(name: str, trace: dict[str, Any], job: dict[str, Any]) -> list[FigureTable]:
    slots = job["pool_slots"]
    figures = trace["allocators"]
    paged = figures[PAGED]["held"]
    note = "Means over the steps in which others wait, the start left out; req/s is simulated."
    if not all(each["others_waited"] for each in figures.values()):
        note += " Where none waited, over all steps."
    if name.startswith("ShareGPT-like") and slots == 15_700:
        note += " " + PAPER_HELD
    batches = FigureTable(
        title=(
            f"{name}: {trace['num_requests']} requests, mean prompt {trace['mean_prompt']:.0f}, "
            f"mean output {trace['mean_output']:.0f}; {slots} slots, blocks of {job['block_size']}"
        ),
        columns=("allocator", "held", "paged / it", "req/s", "preempted"),
        rows=tuple(
            (
                allocator,
                f"{each['held']:.2f}",
                f"{paged / each['held']:.2f}×",
                f"{each['requests_per_second']:.2f}",
                str(each["preemptions"]),
            )
            for allocator, each in figures.items()
        ),
        bar="held",
        note=note,
    )
    kinds = FigureTable(
        title=f"{name}: % of the slots by kind",
        columns=("allocator", *KINDS, "waste"),
        rows=tuple(
            (
                allocator,
                *(f"{100 * each['slots'][kind] / slots:.1f}" for kind in KINDS),
                f"{100 * each['waste']:.1f}",
            )
            for allocator, each in figures.items()
        ),
        bar="waste",
        note="waste: the empty share of what nobody else can have (all but free).",
    )
    return [batches, kinds]


def _block_sizes(traces: dict[str, Any]) -> FigureTable:
    sizes = list(next(iter(traces.values()))["waste_by_block_size"])
    names = [name.partition(" (")[0] for name in traces]
    rows = []
    for size in sizes:
        each = [trace["waste_by_block_size"][size] for trace in traces.values()]
        rows.append(
            (size, *(_percent(e["waste"]) for e in each), *(f"{e['held']:.1f}" for e in each))
        )
    return FigureTable(
        title="Paged: tail waste and requests held, by block size",
        columns=("block", *(f"waste, {n}" for n in names), *(f"held, {n}" for n in names)),
        rows=tuple(rows),
        bar=f"waste, {names[-1]}",
    )


def _sharing(shared: dict[str, Any]) -> FigureTable:
    rows = []
    for name, figures in shared.items():
        name = name.partition(" (")[0]
        paper = PAPER_SAVED.get(name, {})
        for n, saved in figures["parallel"].items():
            rows.append((f"{name}, n = {n}", _percent(saved), paper.get("parallel", "–")))
        for n, saved in figures["beam"].items():
            rows.append((f"{name}, {n} beams", _percent(saved), paper.get("beam", "–")))
    return FigureTable(
        title="Pages saved by sharing",
        columns=("requests", "saved", "paper, 2 to 6 sequences"),
        rows=tuple(rows),
        note=(
            "Beams run under the engine's scheduler, rule and block manager. Their candidates come "
            "from a made-up language with the entropy of a language model, whose beams resemble "
            "each other as SmolLM2's do (benchmarks.studies beams)."
        ),
    )


_PREFIX_ROWS = (
    ("pages saved", lambda f: _percent(f["kv_saved"])),
    ("hit rate", lambda f: _percent(f["hit_rate"])),
    ("prompt tokens computed", lambda f: f"{f['prefill_tokens']:,}"),
    ("seconds of prefill, simulated", lambda f: f"{f['prefill_seconds']:.2f}"),
    ("mean seconds to first token, simulated", lambda f: f"{f['mean_first_token']:.2f}"),
    ("seconds for all, simulated", lambda f: f"{f['seconds']:.2f}"),
)
_FIELD = ("30–60 %", "60–80 %", "–", "−40 %", "–", "–")


def _system_prompt(figures: dict[str, Any]) -> FigureTable:
    return FigureTable(
        title=f"A system prompt of {SYSTEM_TOKENS} tokens under {SYSTEM_REQUESTS} requests",
        columns=("", *figures, "the field's"),
        rows=tuple(
            (label, *(cell(each) for each in figures.values()), field)
            for (label, cell), field in zip(_PREFIX_ROWS, _FIELD)
        ),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def draw_paging(report: dict[str, Any], file: OutputFile) -> None:
    """Requests held, slots by kind and waste by block size; the file's ending chooses the format.

    Raises ValueError if matplotlib is missing or does not know the format.
    """
    figure = require_matplotlib()
    traces = report["traces"]
    canvas = figure.Figure(figsize=(15, 4.2 * len(traces)), layout="constrained")
    grid = canvas.subplots(len(traces), 3, squeeze=False)
    for (left, middle, right), (name, trace) in zip(grid, traces.items()):
        figures = trace["allocators"]
        labels = [allocator.replace(", ", ",\n") for allocator in figures]
        bars = left.bar(labels, [each["held"] for each in figures.values()], color="#0072B2")
        left.bar_label(bars, fmt="%.1f")
        left.set_title(f"{name}\nrequests held at once")
        shares = {
            kind: [100 * f["slots"][kind] / report["job"]["pool_slots"] for f in figures.values()]
            for kind in KINDS
        }
        _stacked_bars(middle, labels, shares)
        middle.set_title("slots by kind, % of the pool")
        middle.legend(fontsize="small")
        sizes = trace["waste_by_block_size"]
        right.plot(list(sizes), [100 * f["waste"] for f in sizes.values()], "o-", color="#D55E00")
        right.set(title="paged: waste, %", xlabel="block size", ylim=(0, None))
        for axes in (left, middle):
            axes.tick_params(axis="x", labelsize="small")
    write_picture(file, canvas)


def _stacked_bars(axes: Any, labels: Sequence[str], parts: Mapping[str, Sequence[float]]) -> None:
    """One bar a label, `parts` on top of each other."""
    base = [0.0] * len(labels)
    for (name, values), color in zip(parts.items(), COLORS):
        axes.bar(labels, values, bottom=base, label=name, color=color)
        base = [below + value for below, value in zip(base, values)]
