"""Bulk copies (TMA) in the interpreter that counts memory traffic, on PTX written by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from benchmarks.kernel_traffic.ptx import (
    Array,
    TensorMap,
    TensorMaps,
    Unbalanced,
    Undecided,
    parse,
    run,
)
from benchmarks.kernel_traffic.ptx.tensors import touch

# Of the pool: pages, their rows, floats of a row. Of a program: blocks of its table.
PAGES, ROWS, DIM, BLOCKS = 9, 8, 32, 4
PAGE_BYTES = ROWS * DIM * 4

# Warp 1 copies a page for each entry of the program's table that begins before `length`, and asks
# for zeros for the others; warp 0 waits twice, and writes a page.
GATHER = """
    .reg .pred %p<9>;
    .reg .b32 %r<99>;
    .shared .align 16 .b8 __dynamic_shmem__0;
$L__begin:
    .loc 1 275 0
    ld.param.b64 %rd1, [tables];
    mov.b64 %rd2, maps;
    cvta.param.u64 %rd3, %rd2;
    add.s64 %rd4, %rd3, 128;
    mov.b64 %rd5, __dynamic_shmem__0;
    cvt.u32.u64 %r1, %rd5;
    add.s32 %r2, %r1, 2048;
    mov.u32 %r3, %tid.x;
    .loc 1 276 16
    mov.u32 %r4, %ctaid.x;
    shr.u32 %r5, %r3, 5;
    shfl.sync.idx.b32 %r6, %r5, 0, 31, -1;
    elect.sync %r7|%p1, -1;
    setp.eq.b32 %p2, %r6, 0;
    and.pred %p3, %p1, %p2;
    // begin inline asm
    @%p3 prefetch.tensormap [%rd3];
    @%p3 mbarrier.init.shared.b64 [%r2], 32;
    // end inline asm
    bar.sync 0;
    mov.b32 %r20, 0;
    @%p2 bra $CONSUME;
    setmaxnreg.dec.sync.aligned.u32 40;
    mul.wide.u32 %rd6, %r4, 16;
    add.s64 %rd7, %rd1, %rd6;
    mov.b32 %r8, 0;
$LOOP:
    mul.wide.u32 %rd8, %r8, 4;
    add.s64 %rd9, %rd7, %rd8;
    ld.global.b32 %r9, [%rd9];
    shl.b32 %r10, %r9, 3;
    shl.b32 %r11, %r8, 3;
    setp.lt.s32 %p4, %r11, LENGTH;
    selp.b32 %r12, %r10, BEHIND, %p4;
    mbarrier.arrive.expect_tx.shared.b64 %rd10, [__dynamic_shmem__0+2048], EXPECTED;
    @CHOSEN cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], \
[%rd3, {%r20,%r12} ], [%r2];
    MORE
    add.s32 %r8, %r8, 1;
    setp.lt.s32 %p5, %r8, 4;
    @%p5 bra $LOOP;
    bra.uni $END;
$CONSUME:
    {
    .reg .pred P1;
    LAB_WAIT:
    mbarrier.try_wait.parity.shared.b64 P1, [%r2], 0, 10000000;
    @P1 bra.uni DONE;
    bra.uni LAB_WAIT;
    DONE:
    }
    @%p1 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd4, {%r20, %r4} ], [%r1];
    cp.async.bulk.commit_group;
    {
    .reg .pred P1;
    LAB_WAIT:
    mbarrier.try_wait.parity.shared.b64 P1, [%r2], 1, 10000000;
    @P1 bra.uni DONE;
    bra.uni LAB_WAIT;
    DONE:
    }
    LAST
    mbarrier.arrive.release.cta.shared::cta.b64 _, [%r2], 1;
    cp.async.bulk.wait_group 0;
$END:
"""
TWICE = """
    mbarrier.arrive.expect_tx.shared.b64 %rd10, [__dynamic_shmem__0+2048], 32;
    @%p1 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], \
[%rd3, {%r20,%r12} ], [%r2];
"""
TABLES = np.array([[7, 3, 6, 1], [2, 5, 99, 99]], np.int32)


def gather(tables=TABLES, **changes):
    told = {"LENGTH": "32", "BEHIND": str(PAGES * ROWS), "EXPECTED": "32", "CHOSEN": "%p1"}
    told |= {"MORE": "", "LAST": ""} | changes
    body = GATHER
    for name, text in told.items():
        body = body.replace(name, text)
    text = (
        ".visible .entry kernel(\n.param .u64 .ptr .align 256 tables,\n"
        f".param .align 64 .b8 maps[256]\n)\n.maxntid 64, 1, 1\n{{\n{body}\nret;\n}}"
    )
    pool, out = Array("pool", PAGES * PAGE_BYTES), Array("out", 2 * DIM * 4)
    maps = TensorMaps(
        (
            TensorMap(pool, (PAGES * ROWS, DIM), (DIM, 1), (ROWS, DIM), 4),
            TensorMap(out, (2, DIM), (DIM, 1), (1, DIM), 4),
        )
    )
    listed = Array("tables", tables.nbytes, tables)
    faults = run(parse(text), [listed, maps], (2, 1, 1), 64, 2064)
    return pool, out, listed, faults


def pages_of(pool):
    return np.nonzero(pool.reads.touched.reshape(PAGES, -1).any(1))[0].tolist()


def test_bytes_are_those_of_the_boxes_that_the_table_names():
    pool, out, listed, faults = gather(LENGTH="13")
    assert not faults
    # Two entries each begin before 13; the others, outside the pool, are zeros that nobody reads.
    assert pages_of(pool) == [2, 3, 5, 7]
    assert pool.reads.requested == pool.reads.bytes == pool.reads.footprint == 4 * PAGE_BYTES
    assert out.writes.requested == out.writes.footprint == 2 * DIM * 4
    assert listed.reads.requested == TABLES.nbytes


def test_a_page_copied_twice_is_seen():
    once, twice = gather(LENGTH="13")[0], gather(LENGTH="13", MORE=TWICE)[0]
    assert twice.reads.requested == 2 * once.reads.requested
    assert twice.reads.footprint == once.reads.footprint
    # Every lane of the warp, without an election.
    every = gather(LENGTH="13", CHOSEN="!%p2", EXPECTED="1024")[0]
    assert every.reads.requested == 32 * once.reads.requested


def test_boxes_outside_are_faults_unless_zeros_are_asked_for():
    pool, _, _, faults = gather()
    assert [str(x)[str(x).index(":") + 2 :] for x in faults] == [
        f"{PAGE_BYTES} bytes at {99 * PAGE_BYTES} of pool"
    ] * 2
    assert pool.reads.requested == 6 * PAGE_BYTES
    # One row behind the end is no way to ask, nor is one row before it.
    for behind, rows in ((PAGES * ROWS + 1, 0), (PAGES * ROWS - 1, 1), (-1, ROWS - 1)):
        pool, _, _, faults = gather(LENGTH="0", BEHIND=str(behind))
        assert {x.offset for x in faults} == {behind * DIM * 4}
        assert pool.reads.requested == 8 * rows * DIM * 4


def test_the_next_entry_of_the_table_is_a_fault():
    pool, _, _, faults = gather(np.array([[99, 7, 3, 6], [99, 2, 5, 99]], np.int32), LENGTH="13")
    assert len(faults) == 2
    assert pages_of(pool) == [2, 7]


@pytest.mark.parametrize(("expected", "told"), [("16", "2048 bytes fewer"), ("64", "bytes more")])
def test_a_barrier_that_expects_other_bytes_is_said(expected, told):
    with pytest.raises(Unbalanced, match=f"the barrier at 2048 of shared memory .*{told}"):
        gather(LENGTH="13", EXPECTED=expected)


def test_what_a_copy_brings_is_not_known():
    """An address from where a page came; one from a cell beside it is known."""
    last = "st.shared.b32 [%r1+1024], %r20; ld.shared.b32 %r30, [%r1+1024];"
    last += "mul.wide.u32 %rd20, %r30, 4; add.s64 %rd21, %rd1, %rd20; ld.global.b32 %r31, [%rd21];"
    assert gather(LENGTH="13", LAST=last)[3] == []
    written = "st.shared.b32 [%r1+512], %r20; bar.sync 0; " + last.replace("+1024", "+512")
    bulk = "mbarrier.arrive.expect_tx.shared.b64 %rd10, [%r2], 32; @%p1 cp.async.bulk.tensor.2d."
    bulk += "shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd3, {%r20,%r20}], [%r2];"
    store, load = last.split("ld.shared", 1)
    inside = store + bulk + "ld.shared" + load
    assert gather(LENGTH="13", LAST=written)[3] == []
    with pytest.raises(Undecided, match="address depends"):
        gather(LENGTH="13", LAST=inside.replace("+1024", "+512"))


def test_a_plain_bulk_store_is_counted():
    last = "mul.wide.u32 %rd20, %r4, 64; add.s64 %rd21, %rd1, %rd20;"
    last += "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd21], [%r1], SIZE;"
    # The second program's is behind the end.
    for size, outside in ((16, 64), (48, 0)):
        _, _, tables, faults = gather(LENGTH="13", LAST=last.replace("SIZE", str(size)))
        assert [(x.offset, x.width) for x in faults] == [(outside, size)]
        assert (tables.writes.requested, tables.writes.sectors) == ((16, 1) if outside else (0, 0))


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"LAST": "@%p1 cp.async.bulk.prefetch.L2.global [%rd1], 16;"}, NotImplementedError, "L2"),
        (
            {"MORE": TWICE.replace("::bytes [", "::bytes.multicast::cluster [")},
            NotImplementedError,
            "multicast",
        ),
        ({"MORE": TWICE.replace("[%rd3,", "[%rd3+64,")}, IndexError, "no tensor map at"),
        ({"MORE": TWICE.replace("[%r1]", "[%r1+1056]")}, IndexError, "1024 bytes at 1056 of 2064"),
    ],
)
def test_what_is_not_covered_is_refused(changes, error, told):
    with pytest.raises(error, match=rf"line \d+: .*{told}"):
        gather(LENGTH="13", **changes)


def test_a_map_larger_than_its_array_is_refused():
    array = Array("a", 64)
    TensorMap(array, (4, 4), (4, 1), (2, 2), 4)
    with pytest.raises(ValueError, match="reaches beyond the 64 bytes of a"):
        TensorMap(array, (4, 4), (5, 1), (2, 2), 4)
    with pytest.raises(ValueError, match="are no tensor map"):
        TensorMap(array, (4, 4), (4,), (2, 2), 4)


@pytest.mark.parametrize("seed", range(6))
def test_boxes_touch_what_their_elements_do(seed):
    random = np.random.default_rng(seed)
    shape, box = (5, 3, 24), (2, 2, int(random.integers(1, 24)))
    strides = (int(random.integers(90, 120)), int(random.integers(24, 30)), 1)
    array = Array("a", 5 * strides[0] * 2)
    tensor = TensorMap(array, shape, strides, box, 2)
    where = np.stack([random.integers(-1, size, 7) for size in shape], 1)
    faults = touch(tensor, where, 1, write=False)
    moved, sectors, outside = 0, 0, 0
    touched = np.zeros_like(array.reads.touched)
    for begin in where:
        bytes_ = set()
        for step in product(*map(range, box)):
            at = begin + step
            if (at >= 0).all() and (at < shape).all():
                first = int(at @ strides) * 2
                bytes_ |= {first, first + 1}
        outside += int(((begin < 0) | (begin + box > shape)).any())
        moved += len(bytes_)
        sectors += len({x // 32 for x in bytes_})
        touched[[x // 32 for x in bytes_]] = True
    assert (array.reads.requested, array.reads.sectors) == (moved, sectors)
    np.testing.assert_array_equal(array.reads.touched, touched)
    assert len(faults) == outside
