"""The check as one table, and which goals it reached."""

from __future__ import annotations

from typing import Any


def goals(report: dict[str, Any]) -> list[tuple[str, bool | None]]:
    """Each goal, and whether it was reached; None where it was not measured."""
    cells = [row for row in report.get("decode", []) if "share_of_copy" in row]
    long = [row["share_of_copy"] for row in cells if row["context"] >= 8192]
    short = [row["share_of_copy"] for row in cells if (row["batch"], row["context"]) == (64, 1024)]
    own = [x for row in cells if (x := _times_own(row)) is not None]
    prefill = [row["share_of_peak"] for row in report.get("prefill", []) if "share_of_peak" in row]
    verdicts = [row["verdict"] for row in report.get("numerics", [])]
    return [
        ("every kernel as float64 has it", bool(verdicts) and "wrong" not in verdicts),
        ("decode: 90 % of the copy rate from 8k tokens on", _least(long, 0.90)),
        ("decode: 75 % of the copy rate at 64 × 1k tokens", _least(short, 0.75)),
        ("decode: 1.5 × JAX's own kernel", _least(own, 1.5)),
        ("prefill: 65 % of the matmul peak", _least(prefill, 0.65)),
    ]


def _least(values: list[float], goal: float) -> bool | None:
    return min(values) >= goal if values else None


def _times_own(row: dict[str, Any]) -> float | None:
    own = row["implementations"].get("jax's paged_attention", {}).get("seconds")
    return own / row["seconds"] if own else None


def table(report: dict[str, Any]) -> str:
    """Markdown."""
    lines = [f"# GPU check{' (dry run: figures mean nothing)' if report['dry_run'] else ''}", ""]
    lines += ["| what | measured |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in _rows(report)]
    if not report["dry_run"]:
        lines += ["", "| goal | reached |", "| --- | --- |"]
        words = {True: "yes", False: "no", None: "not measured"}
        lines += [f"| {name} | {words[reached]} |" for name, reached in goals(report)]
    return "\n".join(lines) + "\n"


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    device = report.get("device", {})
    if "kind" in device:
        rows += [
            ("device", f"{device['kind']}, jax {device['jax']}, timed by {device['clock']}"),
            ("copy, read plus written", f"{device['copy_bytes_per_second'] / 1e9:.1f} GB/s"),
            ("bfloat16 matmul", f"{device['matmul_flops_per_second'] / 1e12:.2f} TFLOP/s"),
        ]
    verdicts = [row["verdict"] for row in report.get("numerics", [])]
    kinds = sorted(set(verdicts))
    rows.append(("kernels against float64", ", ".join(f"{verdicts.count(k)} {k}" for k in kinds)))
    rows += [
        (f"wrong: {row['name']}", row["told"])
        for row in report.get("numerics", [])
        if row["verdict"] == "wrong"
    ]
    for row in report.get("decode", []):
        value = row.get("skipped")
        if value is None:
            value = f"{row['seconds'] * 1e6:.1f} µs, {row['share_of_copy']:.0%} of the copy rate"
            own = _times_own(row)
            value += f", {own:.2f} × JAX's own kernel" if own else ""
        rows.append((f"decode {row['batch']} × {row['context']}", value))
    for row in report.get("prefill", []):
        value = row.get("skipped")
        if value is None:
            value = f"{row['seconds'] * 1e3:.2f} ms, {row['share_of_peak']:.0%} of the matmul peak"
        rows.append((f"prefill {row['batch']} × {row['tokens']}", value))
    engine = report.get("engine", {})
    if "step" in engine:
        parts = ", ".join(
            f"{name} {engine[name] * 1e3:.2f}" for name in ("forward", "sample", "host")
        )
        rows.append(
            (
                f"engine, decode step of {engine['running']}",
                f"{engine['step'] * 1e3:.2f} ms; one at a time: {parts}",
            )
        )
        rows.append(("engine's attention", engine["attention"]))
    for row in report.get("launches", []):
        value = row.get("skipped")
        if value is None:
            value = (
                f"{row['seconds_per_attention'] * 1e6:.1f} µs an attention kernel, "
                f"{row['seconds_per_xla_kernel'] * 1e6:.1f} µs an XLA kernel"
            )
        rows.append((f"launches, {row['setting']}", value))
    for name, told in report.get("failed", {}).items():
        rows.append((f"{name}: failed", told))
    rows.append(("seconds in all", f"{report['seconds']:.0f}"))
    return rows
