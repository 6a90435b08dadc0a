"""The interpreter that counts memory traffic, on PTX written by hand."""

from __future__ import annotations

import re

import numpy as np
import pytest

from benchmarks.kernel_traffic.ptx import Array, Undecided, parse, run

TOKENS, DIM = 37, 32


def kernel(body: str, *parameters: str) -> str:
    listed = ",\n".join(f".param .u64 .ptr .align 16 {name}" for name in parameters)
    return f".visible .entry kernel(\n{listed}\n)\n.reqntid 32, 1, 1\n{{\n{body}\nret;\n}}"


# A program reads the tokens of one sequence, a token of 32 floats at a time: the page of each comes
# from a table that was copied to shared memory. Pages have 8 tokens.
GATHER = """
    .reg .pred %p<9>;
    .reg .b32 %r<99>;
    ld.param.b64 %rd1, [tables];
    ld.param.b64 %rd2, [lengths];
    ld.param.b64 %rd3, [pages];
    ld.param.b64 %rd4, [sums];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mul.wide.s32 %rd5, %r2, 4;
    add.s64 %rd6, %rd2, %rd5;
    ld.global.b32 {%r3}, [%rd6];
    shl.b32 %r4, %r2, 3;           // eight cells to a row
    add.s32 %r5, %r4, %r1;
    mul.wide.s32 %rd7, %r5, 4;
    add.s64 %rd8, %rd1, %rd7;
    shl.b32 %r6, %r1, 2;
    setp.lt.s32 %p1, %r1, 8;
    @%p1 cp.async.ca.shared.global [%r6], [%rd8], 0x4, 4;
    cp.async.commit_group;
    cp.async.wait_group 0;
    bar.sync 0;
    // position
    mov.b32 %r7, BEGIN;
    setp.ge.s32 %p2, %r7, %r3;
    @%p2 bra $DONE;
$LOOP:
    shr.u32 %r8, %r7, 3;
    shl.b32 %r9, %r8, 2;
    ld.shared.b32 %r10, [%r9];
    shl.b32 %r11, %r10, 3;
    and.b32 %r12, %r7, 7;
    or.b32 %r13, %r11, %r12;
    mad.lo.s32 %r14, %r13, 32, %r1;
    mul.wide.s32 %rd9, %r14, 4;
    add.s64 %rd10, %rd3, %rd9;
    ld.global.b32 {%r15}, [%rd10];
    MORE
    add.f32 %r16, %r16, %r15;
    add.s32 %r7, %r7, 1;
    setp.lt.s32 %p3, %r7, %r3;
    @%p3 bra $LOOP;
$DONE:
    mad.lo.s32 %r17, %r2, 32, %r1;
    mul.wide.s32 %rd11, %r17, 4;
    add.s64 %rd12, %rd4, %rd11;
    st.global.b32 [%rd12], {%r16};
"""
AGAIN = "ld.global.nc.b32 {%r20}, [%rd10];"


def gather(begin: str = "0", more: str = "", lengths=(37, 0, 9), tables=None):
    text = kernel(
        GATHER.replace("BEGIN", begin).replace("MORE", more), *"tables lengths pages sums".split()
    )
    if tables is None:
        tables = np.full((3, 8), 1000, np.int32)
        tables[0, :5], tables[2, :2] = [7, 3, 6, 1, 4], [2, 5]
    arrays = {
        "tables": Array("tables", tables.nbytes, tables),
        "lengths": Array("lengths", 12, np.array(lengths, np.int32)),
        "pages": Array("pages", 8 * 8 * DIM * 4),
        "sums": Array("sums", 3 * DIM * 4),
    }
    faults = run(parse(text), list(arrays.values()), (3, 1, 1), 32, 64)
    return arrays, faults


def test_bytes_follow_trip_counts_and_the_table():
    arrays, faults = gather()
    assert not faults
    pages = arrays["pages"].reads
    assert pages.requested == pages.bytes == pages.footprint == (37 + 9) * DIM * 4
    assert arrays["sums"].writes.requested == 3 * DIM * 4
    # One address for all lanes of a warp is one request, of a whole sector.
    assert arrays["lengths"].reads.requested == 12
    assert arrays["lengths"].reads.sectors == 3
    # Only eight lanes copy the table.
    assert arrays["tables"].reads.requested == 3 * 8 * 4
    touched = np.nonzero(pages.touched.reshape(8, -1).any(1))[0]
    assert touched.tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_a_double_load_is_seen():
    once, twice = gather()[0], gather(more=AGAIN)[0]
    assert twice["pages"].reads.requested == 2 * once["pages"].reads.requested
    assert twice["pages"].reads.footprint == once["pages"].reads.footprint


def test_a_window_too_wide_is_seen():
    for begin, tokens in (("29", 8), ("28", 9), ("0", 37)):
        arrays, _ = gather(begin, lengths=(37, 0, 0))
        assert arrays["pages"].reads.requested == tokens * DIM * 4


def test_a_wrong_index_is_a_fault():
    arrays, faults = gather(lengths=(41, 0, 9))
    assert [fault.array for fault in faults] == ["pages"]
    assert faults[0].offset == 1000 * 8 * DIM * 4
    assert arrays["pages"].reads.requested == (40 + 9) * DIM * 4
    tables = np.full((3, 8), -1, np.int32)
    _, faults = gather(tables=tables)
    assert {(fault.array, fault.offset) for fault in faults} >= {("pages", -8 * DIM * 4)}
    assert "128" not in str(faults[0])
    assert re.match(r"line \d+: 4 bytes at -\d+ of pages", str(faults[0]))


def test_what_is_not_followed_is_refused():
    with pytest.raises(Undecided, match="line .*: address depends on a value"):
        gather(more="mul.wide.s32 %rd10, %r15, 4; ld.global.b32 {%r20}, [%rd10];")
    with pytest.raises(Undecided, match="predicate %p8 depends"):
        gather(more="setp.gt.f32 %p8, %r15, 0f00000000; @%p8 bra $DONE;")
    with pytest.raises(NotImplementedError, match=r"atom\.global\.add\.u32"):
        gather(more="atom.global.add.u32 %r20, [%rd10], 1;")


def test_threads_that_part_meet_again():
    """Each lane loops as often as its number says, then all store together."""
    text = kernel(
        """
        ld.param.b64 %rd1, [out];
        mov.u32 %r1, %tid.x;
        mov.b32 %r2, 0;
        mov.b32 %r3, 0;
    $LOOP:
        setp.ge.s32 %p1, %r2, %r1;
        @%p1 bra $END;
        add.s32 %r2, %r2, 1;
        add.s32 %r3, %r3, %r2;
        bra.uni $LOOP;
    $END:
        bar.sync 0;
        mul.wide.s32 %rd2, %r3, 4;
        add.s64 %rd3, %rd1, %rd2;
        setp.ne.b32 %p2, %r1, 31;
        @!%p2 bra $LAST;
        st.global.b32 [%rd3], {%r3};
    $LAST:
        """,
        "out",
    )
    out = Array("out", 4 * 500)
    assert run(parse(text), [out], (1, 1, 1), 32, 0) == []
    want = {n * (n + 1) // 2 // 8 for n in range(31)}
    assert set(np.nonzero(out.writes.touched)[0].tolist()) == want
    # Together: a sector that several lanes write is moved once.
    assert out.writes.sectors == len(want)


def value_of(lines: str, register: str = "%r9") -> int:
    """What a register holds: it becomes an address."""
    text = kernel(
        f"""
        ld.param.b64 %rd1, [out];
        {lines}
        cvt.u64.u32 %rd2, {register};
        shl.b64 %rd2, %rd2, 5;
        add.s64 %rd3, %rd1, %rd2;
        st.global.b32 [%rd3], {{%r1}};
        """,
        "out",
    )
    out = Array("out", 1 << 14)
    faults = run(parse(text), [out], (1, 1, 1), 32, 1024)
    if faults:
        return faults[0].offset // 32
    return int(np.nonzero(out.writes.touched)[0][0])


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        ("mov.b32 %r1, -7; shr.s32 %r2, %r1, 1; neg.s32 %r9, %r2;", 4),
        ("mov.b32 %r1, -7; div.s32 %r2, %r1, 2; neg.s32 %r9, %r2;", 3),
        ("mov.b32 %r1, -7; rem.s32 %r2, %r1, 4; neg.s32 %r9, %r2;", 3),
        ("mov.b32 %r1, 0xF5; bfe.u32 %r9, %r1, 4, 3;", 7),
        ("mov.b32 %r1, 0x50; bfe.s32 %r2, %r1, 4, 3; neg.s32 %r9, %r2;", 3),
        ("mov.b32 %r1, 1; shl.b32 %r2, %r1, 32; or.b32 %r9, %r2, 5;", 5),
        ("mov.b32 %r1, 0x40000000; mul.hi.u32 %r9, %r1, 12;", 3),
        ("mov.b32 %r1, 0x10001; mul.lo.s32 %r2, %r1, 0x10000; shr.u32 %r9, %r2, 16;", 1),
        ("mov.b32 %r1, -2; min.u32 %r9, %r1, 6;", 6),
        ("mov.b32 %r1, -2; max.s32 %r9, %r1, 6;", 6),
        ("mov.b32 %r1, 300; cvt.u16.u32 %rs1, %r1; cvt.s32.s8 %r9, %rs1;", 44),
        ("mov.pred %p1, -1; not.pred %p2, %p1; selp.b32 %r9, 8, 2, %p2;", 2),
        ("mov.b32 %r1, 9; setp.lt.and.s32 %p1|%p2, %r1, 10, !%p3; selp.b32 %r9, 8, 2, %p1;", None),
        (
            "mov.u32 %r1, %laneid; shfl.sync.bfly.b32 %r9, %r1, 3, 31, -1; @%p9 mov.b32 %r9, 1;",
            None,
        ),
        ("mov.b32 %r1, 6; shfl.sync.idx.b32 %r9|%p1, %r1, 3, 31, -1;", 6),
    ],
)
def test_integers_are_ptx_integers(lines, value):
    if value is None:
        with pytest.raises(Undecided):
            value_of(lines)
    else:
        assert value_of(lines) == value


def test_integers_that_go_through_matrix_instructions_stay_known():
    """Row r of the 8x8 matrix is 16 bytes at the address of lane r; lane l gets word l % 4."""
    lines = """
        mov.u32 %r1, %tid.x;
        shl.b32 %r2, %r1, 2;
        mul.lo.s32 %r3, %r1, 3;
        st.shared.b32 [%r2], %r3;
        bar.sync 0;
        shl.b32 %r4, %r1, 4;
        and.b32 %r4, %r4, 127;
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r4];
        setp.ne.s32 %p1, %r5, %r3;
        selp.b32 %r9, 1, 0, %p1;
    """
    assert value_of(lines) == 0
    stored = lines.replace(
        "ldmatrix", "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r4+512], {%r3};\nldmatrix"
    )
    assert value_of(stored.replace("[%r4];", "[%r4+512];")) == 0
