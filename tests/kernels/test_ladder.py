"""The ladder: each rung sees a bug put there for it, and a rung that breaks is said."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from pallas_kernels.lab import plants
from pallas_kernels.lab.interpreted import checks
from pallas_kernels.lab.ladder import (
    KERNELS,
    ONE_BYTE,
    TARGETS,
    Results,
    climb,
    complaints,
    interpret,
    table,
)
from pallas_kernels.lab.planted import light

ONE = [(128, 16)]


@cache
def results():
    """As other installations leave them, without a fault."""
    compiled, moved = [], []
    for kernel, (kind, dtype, launch, splits) in (KERNELS | ONE_BYTE).items():
        for target in TARGETS:
            row = {
                "target": target,
                "program": f"{kind} D128 page16 {dtype}",
                "kernel": launch,
                "grid": "8, 8, 4" if splits else "8, 8, 1",
                "registers": 96,
                "spills": 0,
                "shared_memory": 2048,
                "occupancy": 0.25,
                "mma": 32,
                "wgmma": 0,
                "async_copy": 35,
            }
            compiled.append(row)
            call = {"target": target, "call": f"{kernel} D128 page16", "complaints": []}
            moved.append(call | {"ratio": 1.01, "pages_ratio": 1.0})
    lowered = [
        {"target": row["target"], "program": row["program"], "error": ""} for row in compiled
    ]
    planted = [{"rung": rung, "plant": "p", "told": "seen"} for rung in "abcde"]
    return Results({"0.10.2": lowered, "0.12.0": lowered}, compiled, moved, planted)


def rows(found=None, sizes=ONE, wrong=None):
    names = [*KERNELS, "decode v1 int8", "write int8"]
    interpreted = {(name, *size): "" for name in names for size in sizes} | (wrong or {})
    return list(climb(interpreted, found or results(), sizes))


def test_each_rung_without_a_compiler_sees_its_bug():
    found = list(light())
    assert {caught.rung for caught in found} == {"a", "b", "e"}
    assert [caught.plant for caught in found if not caught.told] == []


def test_a_plant_that_no_longer_fits_is_said():
    with pytest.raises(ValueError, match="must stand once in attention.py"):
        replace(plants.NEXT_PAGE, right="nowhere to be found").module()


def test_a_ladder_without_faults_has_a_row_for_each_target():
    found = rows()
    assert complaints(found, results().planted) == []
    assert {(row.kernel, row.target) for row in found} == {
        (kernel, target) for kernel in KERNELS | ONE_BYTE for target in TARGETS
    }
    by_kernel = {row.kernel: row for row in found}
    assert by_kernel["merge"].ratio == 1.01
    text = table(found, results().planted)
    assert (
        "| decode v2 | 128 | 16 | h200 | yes | 2 of 2 | 96 | 0 | 2.0 | 25% | mma.sync | 35 |"
        in text
    )
    # A head size whose traffic is not counted needs none.
    other = rows(sizes=[(80, 16)])
    assert not any("(d)" in fault for row in other for fault in row.faults)
    assert all("(c): not compiled" in row.faults for row in other)


def changed(name, **values):
    """Results of which one row, the first of the kernel `name`, is another."""
    lists = {"compiled": list(results().compiled), "traffic": list(results().traffic)}
    which = "compiled" if "spills" in values or "mma" in values else "traffic"
    at = next(
        i for i, row in enumerate(lists[which]) if row.get("program", row.get("call")) == name
    )
    lists[which][at] = lists[which][at] | values
    return replace(results(), **lists)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (lambda: changed("decode256 D128 page16 bfloat16", spills=8), r"\(c\): 8 bytes of spills"),
        (lambda: changed("mixed D128 page16 bfloat16", mma=0, wgmma=0), "no tensor cores"),
        (
            lambda: changed("decode v1 D128 page16", complaints=["bytes of pages are 1.50"]),
            r"\(d\): bytes of pages are 1\.50",
        ),
        (lambda: replace(results(), compiled=[]), r"\(c\): not compiled"),
        (lambda: replace(results(), traffic=[]), r"\(d\): not counted"),
        (
            lambda: replace(results(), lowered=dict(list(results().lowered.items())[:1])),
            "on one version of jax alone",
        ),
        (
            lambda: replace(results(), lowered={**results().lowered, "0.9.9": []}),
            r"\(b\): not lowered on jax 0\.9\.9",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_rung_that_breaks_is_said(found, told):
    import re

    assert [x for x in complaints(rows(found()), results().planted) if re.search(told, x)]


def test_wrong_answers_and_missing_plants_are_said():
    key = ("prefill", 128, 16)
    found = complaints(rows(wrong={key: "AssertionError: far off"}), [])
    assert any("prefill D128 page16 h200: (a), (e): AssertionError: far off" in x for x in found)
    assert "(d) has no planted bug" in found
    unseen = [{"rung": rung, "plant": "p", "told": "" if rung == "c" else "x"} for rung in "abcde"]
    assert complaints(rows(), unseen) == ["(c) did not see p"]


def test_writing_and_copying_are_checked(monkeypatch):
    from pallas_kernels.lab import interpreted

    short = [x for x in checks("triton", 64, 16) if x.kernel in ("write int8", "copy")]
    assert len(short) == 2
    for check in short:
        check.run()

    def nothing(pages, *others, backend):
        return pages

    monkeypatch.setattr(interpreted, "copy_pages", nothing)
    monkeypatch.setattr(
        "pallas_kernels.lab.ladder.checks",
        lambda *size: [x for x in checks(*size) if x.kernel == "copy"],
    )
    told: list[str] = []
    found = interpret("triton", [(64, 16)], told=told.append)
    assert "AssertionError" in found["copy", 64, 16]
    assert told
    assert told[0].startswith("copy D64 page16: AssertionError")
