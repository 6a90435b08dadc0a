"""What a call launches and must move, without compiling anything."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from benchmarks.kernel_traffic.calls import attention_call, calls, matmul_calls, mosaic_calls
from benchmarks.kernel_traffic.ideals import Ideal, mosaic_ideal
from benchmarks.kernel_traffic.launches import Launch, Operand, launches
from benchmarks.kernel_traffic.ptx import Fault
from benchmarks.kernel_traffic.traffic import Code, Moved, Traffic, count

H100 = jax.sharding.AbstractDevice("NVIDIA H100", 1, "cuda")
LENGTHS = [(1, 40), (5, 70), (0, 0), (33, 33), (1, 1)]


def mixed(**options):
    call = attention_call("triton", 64, 16, "mixed", LENGTHS, **options)
    return call, launches(call.function, call.arguments, H100)


def test_launches_carry_the_arguments_that_decide_addresses():
    call, found = mixed()
    assert [x.kernel for x in found] == ["paged_attention"] * 2 + ["merge_splits"] * (
        len(found) - 2
    )
    assert len({x.grid for x in found}) == len(found)
    for launch in found[:2]:
        assert launch.grid[0] == 3
        named = {x.name: x for x in launch.operands}
        np.testing.assert_array_equal(named["block_tables"].value, call.arguments["block_tables"])
        assert named["k_pages"].value is None
        assert named["k_pages"].nbytes == call.arguments["k_pages"].nbytes
    # Tokens of the two launches: of prompts, with padding's, and single ones.
    tables = [next(x.value for x in launch.operands if x.shape[1:] == (4,)) for launch in found[:2]]
    assert sorted(int(table[:, 2].sum()) for table in tables) == [2, 38]


def test_outputs_in_place_are_their_inputs():
    (write,) = [x for x in calls("triton", 64, 16) if x.name.startswith("write int8")]
    (launch,) = launches(write.function, write.arguments, H100)
    names = [x.name for x in launch.operands]
    assert names[:4] == names[-4:] == ["k_pages", "v_pages", "k_scale", "v_scale"]
    assert launch.operands[0] is launch.operands[-4]


def test_pages_are_found_among_the_operands():
    others = [*calls("triton", 64, 16), *matmul_calls("triton")]
    for call in (x for x in others if x.name.startswith(("write", "copy", "matmul"))):
        (launch,) = launches(call.function, call.arguments, H100)
        pages = {x.name for x in launch.operands} & set(call.pages)
        assert pages == set(call.arguments) & set(call.pages) != set(), call.name


@pytest.mark.parametrize("window", [None, 7, 20])
def test_the_ideal_is_what_queries_see(window):
    call, found = mixed(window=window)
    per_tile = 64 // 3
    keys, once = 0, 0
    for new, cached in LENGTHS:
        seen = [
            {p for p in range(at + 1) if window is None or p > at - window}
            for at in range(cached - new, cached)
        ]
        once += len(set().union(*seen))
        step = 1 if new == 1 else per_tile
        keys += sum(len(set().union(*seen[i : i + step])) for i in range(0, new, step))
    ideal = call.ideal(call.arguments, found)
    per_key = 2 * 3 * 64 * 2
    assert ideal.pages == keys * per_key
    assert ideal.once == once * per_key
    assert ideal.pages < ideal.total


def mosaic_launches(call, splits):
    """As Mosaic GPU's kernel is launched: several tokens to a tile, then single ones, split."""
    tables = [[[1, 0, 5, 65], [3, 5, 33, 0]], [[0, 0, 1, 39], [4, 38, 1, 0]]]
    return [
        Launch(
            "mosaic_attention",
            (3, len(table), each),
            (Operand("table", (2, 4), np.dtype(np.int32), np.array(table, np.int32)),),
        )
        for table, each in zip(tables, (1, splits))
    ]


@pytest.mark.parametrize("splits", [1, 4])
def test_the_ideal_of_mosaic_is_what_its_launches_read_and_write(splits):
    call, _ = mixed()
    keys = [5 + 65, 33, 40, 1]
    cells = [5, 3, 3, 1]
    row = 9 * 64 * 2
    written = 38 * (row + 9 * 4) + 2 * (row + 9 * 4 if splits == 1 else splits * 9 * 65 * 4)
    ideal = mosaic_ideal(call.arguments, mosaic_launches(call, splits))
    assert ideal.pages == ideal.once == sum(keys) * 2 * 3 * 64 * 2
    assert ideal.total == ideal.pages + 4 * sum(cells) + 40 * row + written


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="Mosaic GPU needs jax 0.11 or newer")
def test_launches_of_mosaic_name_the_pages_behind_a_reshape():
    (call,) = [x for x in mosaic_calls(64, 16) if "prefill" in x.name]
    found = launches(call.function, call.arguments, H100)
    assert [x.kernel for x in found] == ["mosaic_attention"] * 2
    for launch in found:
        names = [x.name for x in launch.operands]
        assert names[1:5] == ["block_tables", "input 2", "k_pages", "v_pages"]
        pages = launch.operand("k_pages")
        assert pages.shape[1] == 64
        assert pages.nbytes == call.arguments["k_pages"].nbytes
        table = launch.operands[0].value
        assert launch.grid[:2] == (3, len(table))
        assert launch.operands[5].shape[:3] == launch.grid[::-1]
    assert [x.grid[2] > 1 for x in found] == [False, True]


def moved(**changes):
    given = {"read": 1000, "written": 50, "sectors": 1100, "pages_read": 900, "pages_written": 0}
    return Moved(kernel="k", **(given | {"faults": ()} | changes))


def test_what_is_too_much_or_too_little_is_said():
    ideal = Ideal(total=1000, pages=900, once=900)
    fine = Traffic((moved(),), 900, ideal)
    assert fine.ratio == 1.05
    assert fine.sector_ratio == 1.1
    assert fine.complaints() == []
    for changes, told in (
        ({"read": 1100}, "all bytes are 1.15"),
        ({"pages_read": 1000}, "bytes of pages are 1.11"),
        ({"pages_read": 500}, "bytes of pages are 0.56 times the ideal: something is not read"),
        ({"once": 1000}, "pages touched are 1.11"),
        ({"faults": (Fault("q", -4, 4, 9),)}, "k: line 9: 4 bytes at -4 of q"),
    ):
        once = changes.pop("once", 900)
        (complaint,) = Traffic((moved(**changes),), once, ideal).complaints()
        assert told in complaint


def test_code_of_another_launch_is_refused():
    call, found = mixed()
    code = Code("paged_attention", ".entry paged_attention()\n{\nret;\n}", (3, 9, 9), 128, 0)
    with pytest.raises(ValueError, match=r"paged_attention with grid .* is not one of"):
        count([code], found[:1], call.pages, Ideal(1, 1, 1))
