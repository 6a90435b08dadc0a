"""The ladder: each rung sees a bug put there for it, and a rung that breaks is said."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest

from benchmarks.kernel_traffic import plants
from benchmarks.kernel_traffic.interpreted import checks
from benchmarks.kernel_traffic.ladder import (
    BACKENDS,
    KERNELS,
    Results,
    checks_at,
    climb,
    complaints,
    every_size,
    interpret,
    label,
    table,
)
from benchmarks.kernel_traffic.planted import light

ONE = [(128, 16)]


@cache
def results():
    """As other installations leave them, without a fault."""
    compiled, moved = {backend: [] for backend in BACKENDS}, []
    for kernel in KERNELS:
        for size in set(kernel.sizes) & {*ONE, None}:
            for target in kernel.targets:
                row = {
                    "target": target,
                    "program": kernel.program.format(label(size)),
                    "kernel": kernel.launch,
                    "grid": "8, 8, 4" if kernel.splits else "8, 8, 1",
                    "registers": 96,
                    "spills": 0,
                    "shared_memory": 2048,
                    "occupancy": 0.25,
                    "mma": 32,
                    "wgmma": 0,
                    "async_copy": 35,
                    "tma_load": 0,
                    "threads": 128,
                }
                compiled[kernel.backend].append(row)
                call = f"{kernel.name} {label(size)}".strip()
                call = {"target": target, "call": call, "complaints": []}
                moved.append(call | {"ratio": 1.01, "pages_ratio": 1.0})
    lowered = {
        backend: {
            version: [
                {"target": row["target"], "program": row["program"], "error": ""} for row in rows
            ]
            for version in ("0.10.2", "0.12.0")
        }
        for backend, rows in compiled.items()
    }
    planted = [{"rung": rung, "plant": "p", "told": "seen"} for rung in "abcde"]
    return Results(lowered, compiled, moved, planted)


def rows(found=None, sizes=ONE, wrong=None):
    answers = {(kernel.call, size): "" for kernel in KERNELS for size in sizes} | (wrong or {})
    return list(climb(answers, found or results(), sizes))


def test_each_rung_without_a_compiler_sees_its_bug():
    found = list(light())
    assert {caught.rung for caught in found} == {"a", "b", "e"}
    assert [caught.plant for caught in found if not caught.told] == []


@pytest.mark.parametrize(
    "plant",
    [plants.MOSAIC_DOUBLE_LOAD, plants.MOSAIC_WIDE_WINDOW, plants.MOSAIC_NEXT_PAGE],
    ids=lambda plant: plant.name,
)
def test_plants_of_mosaic_fit_its_kernel(plant):
    assert plant.module().launch.__module__ == "planted"
    with pytest.raises(ValueError, match="must stand once in kernel.py"):
        replace(plant, changes=(*plant.changes, ("nowhere to be found", ""))).module()


def test_a_plant_that_no_longer_fits_is_said():
    with pytest.raises(ValueError, match="must stand once in attention.py"):
        replace(plants.NEXT_PAGE, changes=(("nowhere to be found", ""),)).module()


def test_a_ladder_without_faults_has_a_row_for_each_target():
    found = rows(sizes=[*ONE, None])
    assert complaints(found, results().planted) == []
    assert [(row.kernel, row.target) for row in found if row.size] == [
        (kernel.name, target)
        for kernel in KERNELS
        if kernel.sizes != (None,)
        for target in kernel.targets
    ]
    by_kernel = {row.kernel: row for row in found}
    assert by_kernel["merge"].ratio == 1.01
    text = table(found, results().planted)
    compiled = "0.10.2, 0.12.0 | 96 | 0 | 2.0 | 25% | mma.sync | 35 | 1.010 | 1.000 | yes |"
    assert f"| decode v2 | 128 | 16 | h200 | yes | {compiled}" in text
    assert f"| matmul w4a16 | – | – | a100 | yes | {compiled}" in text
    assert f"| mosaic prefill | 128 | 16 | h200 | yes | {compiled}" in text
    # A head size whose traffic is not counted needs none.
    other = rows(sizes=[(80, 16)])
    assert not any("(d)" in fault for row in other for fault in row.faults)
    assert all("(c): not compiled" in row.faults for row in other)


def test_results_are_read_from_the_files_of_each_back_end(tmp_path):
    found = results()
    for suffix, backend in (("", "triton"), ("_mosaic", "mosaic")):
        mine = [x for x in found.traffic if x["call"].startswith("mosaic") == bool(suffix)]
        for name, held in (
            ("lowering", found.lowered[backend]),
            ("offline_compile", {"rows": found.compiled[backend]}),
            ("traffic", {"rows": mine}),
        ):
            (tmp_path / f"{name}{suffix}.json").write_text(json.dumps(held))
    (tmp_path / "planted.json").write_text(json.dumps(found.planted))
    read = Results.read(tmp_path)
    assert complaints(rows(read, [*ONE, None]), read.planted) == []
    assert len(read.traffic) == len(found.traffic)
    (tmp_path / "traffic_mosaic.json").write_text(json.dumps({"rows": []}))
    told = complaints(rows(Results.read(tmp_path)), found.planted)
    assert told == [
        f"mosaic {name} D128 page16 h200: (d): not counted"
        for name in ("decode v1", "decode v2", "prefill")
    ]


def test_every_kernel_has_checks_at_every_size():
    wanted = {(kernel.call, size) for kernel in KERNELS for size in kernel.sizes}
    made = {(check.kernel, size) for size in every_size() for check in checks_at(size)}
    assert wanted - made == set()


def changed(name, **values):
    """Results of which one row, the first of the kernel `name`, is another."""
    found = results()
    if "spills" in values or "mma" in values:
        held = list(found.compiled["triton"])
    else:
        held = list(found.traffic)
    at = next(i for i, row in enumerate(held) if row.get("program", row.get("call")) == name)
    held[at] = held[at] | values
    if held[at].get("program"):
        return replace(found, compiled=found.compiled | {"triton": held})
    return replace(found, traffic=held)


def lowered_by(versions):
    return replace(results(), lowered=results().lowered | {"triton": versions})


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (lambda: changed("decode256 D128 page16 bfloat16", spills=8), r"\(c\): 8 bytes of spills"),
        (
            lambda: changed("mixed D128 page16 bfloat16", mma=0, wgmma=0),
            "no tensor-core instruction",
        ),
        (
            lambda: changed("decode v1 D128 page16", complaints=["bytes of pages are 1.50"]),
            r"\(d\): bytes of pages are 1\.50",
        ),
        (
            lambda: replace(results(), compiled=dict.fromkeys(BACKENDS, ())),
            r"mosaic prefill D128 page16 h200: \(c\): not compiled",
        ),
        (lambda: replace(results(), traffic=[]), r"\(d\): not counted"),
        (
            lambda: lowered_by(dict(list(results().lowered["triton"].items())[:1])),
            "on one version of jax alone",
        ),
        (
            lambda: lowered_by(results().lowered["triton"] | {"0.9.9": []}),
            r"\(b\): not lowered on jax 0\.9\.9",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_rung_that_breaks_is_said(found, told):
    import re

    assert [x for x in complaints(rows(found()), results().planted) if re.search(told, x)]


def test_wrong_answers_and_missing_plants_are_said():
    key = ("prefill", (128, 16))
    found = complaints(rows(wrong={key: "AssertionError: far off"}), [])
    assert any("prefill D128 page16 h200: (a), (e): AssertionError: far off" in x for x in found)
    assert "(d) has no planted bug" in found
    unseen = [{"rung": rung, "plant": "p", "told": "" if rung == "c" else "x"} for rung in "abcde"]
    assert complaints(rows(), unseen) == ["(c) did not see p"]


def test_writing_and_copying_are_checked(monkeypatch):
    from benchmarks.kernel_traffic import interpreted

    short = [x for x in checks("triton", 64, 16) if x.kernel in ("write int8", "copy")]
    assert len(short) == 2
    for check in short:
        check.run()

    def nothing(pages, *others, backend):
        return pages

    monkeypatch.setattr(interpreted, "copy_pages", nothing)
    monkeypatch.setattr(
        "benchmarks.kernel_traffic.ladder.checks_at",
        lambda size: [x for x in checks("triton", *size) if x.kernel == "copy"],
    )
    told: list[str] = []
    found = interpret([(64, 16)], told=told.append)
    assert "AssertionError" in found["copy", (64, 16)]
    assert told
    assert told[0].startswith("copy D64 page16: AssertionError")
