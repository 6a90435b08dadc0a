"""What Mosaic GPU's host code passes to its kernel, read from a dump."""

from __future__ import annotations

import pytest

from benchmarks.kernel_traffic.host_code import MapOf, bound, read
from benchmarks.kernel_traffic.ptx import Array, TensorMap, TensorMaps

# As `mosaic_gpu` dumps it before the launch is lowered, shortened: arguments 0 and 2 as pointers,
# and two maps, of argument 1 in boxes of [8, 1, 64] and of argument 3.
EARLIER = """
  func.func @attend(%a: !llvm.ptr loc("m"(#loc)), %b: !llvm.ptr loc("m"(#loc))) {
    gpu.launch blocks(%x, %y, %z) in (%p = %c1, %q = %c1, %r = %c1) dynamic_shared_memory_size %c9
  }
"""
DUMP = """
// -----// IR Dump Before GpuLaunchLoweringPass: gpu-launch-lowering //----- //
  func.func private @mosaic_gpu_init_tma_desc(!llvm.ptr, !llvm.ptr, i64, i64, !llvm.ptr, i64)
  func.func @attend(%map: !llvm.ptr loc("m"(#loc)), %map_0: !llvm.ptr loc("m"(#loc))) attributes {} {
    %0 = llvm.mlir.undef : !llvm.struct<(ptr, ptr, i64, array<2 x i64>, array<2 x i64>)> loc(#loc2)
    %1 = llvm.mlir.constant(0 : i64) : i64 loc(#loc2)
    %2 = llvm.mlir.constant(64 : i64) : i64 loc(#loc2)
    %3 = llvm.mlir.constant(512 : i64) : i64 loc(#loc2)
    %4 = llvm.mlir.constant(1 : i64) : i64 loc(#loc2)
    %5 = llvm.mlir.constant(1 : i32) : i32 loc(#loc1)
    %6 = llvm.mlir.constant(7 : i64) : i64 loc(#loc2)
    %7 = llvm.mlir.constant(3 : i64) : i64 loc(#loc2)
    %8 = llvm.mlir.constant(8 : i64) : i64 loc(#loc2)
    %9 = llvm.mlir.constant(6 : i64) : i64 loc(#loc2)
    %10 = llvm.mlir.constant(128 : i64) : i64 loc(#loc2)
    %21 = llvm.load %map_0 : !llvm.ptr -> !llvm.ptr loc(#loc1)
    %22 = llvm.getelementptr %map_0[1] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr loc(#loc1)
    %23 = llvm.load %22 : !llvm.ptr -> !llvm.ptr loc(#loc1)
    %24 = llvm.insertvalue %23, %0[0] : !llvm.struct<(ptr, ptr, i64, array<2 x i64>)> loc(#loc1)
    %25 = llvm.insertvalue %23, %24[1] : !llvm.struct<(ptr, ptr, i64, array<2 x i64>)> loc(#loc1)
    %26 = llvm.insertvalue %1, %25[2] : !llvm.struct<(ptr, ptr, i64, array<2 x i64>)> loc(#loc1)
    %27 = llvm.insertvalue %3, %26[3, 0] : !llvm.struct<(ptr, ptr, i64, array<2 x i64>)> loc(#loc1)
    %28 = builtin.unrealized_conversion_cast %27 : !llvm.struct<(ptr)> to memref<512x64xbf16> loc(#l)
    %29 = llvm.getelementptr %map_0[2] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr loc(#loc1)
    %30 = llvm.load %29 : !llvm.ptr -> !llvm.ptr loc(#loc1)
    %31 = llvm.getelementptr %map_0[3] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr loc(#loc1)
    %32 = llvm.load %31 : !llvm.ptr -> !llvm.ptr loc(#loc1)
    %copy = llvm.alloca %4 x !llvm.array<256 x i8> {alignment = 64 : i64} : (i64) -> !llvm.ptr loc(#l)
    %view = memref.reinterpret_cast %28 to offset: [0], sizes: [64, 8, 64], strides: [512, 64, 1] : memref<512x64xbf16> to memref<64x8x64xbf16> loc(#loc1)
    %turned = memref.transpose %view (d0, d1, d2) -> (d0, d2, d1) : memref<64x8x64xbf16> loc(#loc1)
    %pointer = memref.extract_aligned_pointer_as_index %turned : memref<64x8x64xbf16> -> index loc(#l)
    %33 = builtin.unrealized_conversion_cast %pointer : index to i64 loc(#loc1)
    %34 = llvm.inttoptr %33 : i64 to !llvm.ptr loc(#loc1)
    %35 = llvm.alloca %5 x !llvm.array<3 x i64> : (i32) -> !llvm.ptr loc(#loc1)
    llvm.store %2, %35 : i64, !llvm.ptr loc(#loc1)
    %36 = llvm.getelementptr %35[1] : (!llvm.ptr) -> !llvm.ptr, i64 loc(#loc1)
    llvm.store %8, %36 : i64, !llvm.ptr loc(#loc1)
    %37 = llvm.getelementptr %35[2] : (!llvm.ptr) -> !llvm.ptr, i64 loc(#loc1)
    llvm.store %2, %37 : i64, !llvm.ptr loc(#loc1)
    %38 = llvm.alloca %5 x !llvm.array<3 x i64> : (i32) -> !llvm.ptr loc(#loc1)
    llvm.store %3, %38 : i64, !llvm.ptr loc(#loc1)
    %39 = llvm.getelementptr %38[1] : (!llvm.ptr) -> !llvm.ptr, i64 loc(#loc1)
    llvm.store %2, %39 : i64, !llvm.ptr loc(#loc1)
    %40 = llvm.getelementptr %38[2] : (!llvm.ptr) -> !llvm.ptr, i64 loc(#loc1)
    llvm.store %4, %40 : i64, !llvm.ptr loc(#loc1)
    %41 = llvm.alloca %5 x !llvm.array<3 x i64> : (i32) -> !llvm.ptr loc(#loc1)
    llvm.store %8, %41 : i64, !llvm.ptr loc(#loc1)
    %42 = llvm.getelementptr %41[1] : (!llvm.ptr) -> !llvm.ptr, i64 loc(#loc1)
    llvm.store %4, %42 : i64, !llvm.ptr loc(#loc1)
    %43 = llvm.getelementptr %41[2] : (!llvm.ptr) -> !llvm.ptr, i64 loc(#loc1)
    llvm.store %2, %43 : i64, !llvm.ptr loc(#loc1)
    call @mosaic_gpu_init_tma_desc(%copy, %34, %6, %7, %35, %38, %10, %41) : (!llvm.ptr) -> () loc(#l)
    %44 = llvm.getelementptr %copy[128] : (!llvm.ptr) -> !llvm.ptr, i8 loc(#loc1)
    call @mosaic_gpu_init_tma_desc(%44, %32, %9, %7, %35, %38, %10, %41) : (!llvm.ptr) -> () loc(#l)
    %whole = llvm.load %copy : !llvm.ptr -> !llvm.array<256 x i8> loc(#loc5)
    gpu.launch_func <%map : !llvm.ptr> @attend::@attend blocks in (%8, %2, %4) threads in (%3, %4, %4) : i64 dynamic_shared_memory_size %5 args(%30 : !llvm.ptr, %21 : !llvm.ptr, %whole : !llvm.array<256 x i8>) loc(#loc1)
    return loc(#loc1)
  }
  gpu.binary @attend [#gpu.object<#nvvm.target<O = 3>, bin = "...">]
"""  # noqa: E501


def test_pointers_and_maps_are_those_of_the_launch():
    shape, strides, box = (64, 8, 64), (512, 64, 1), (8, 1, 64)
    assert read(EARLIER + DUMP) == (
        2,
        0,
        (MapOf(1, shape, strides, box, 2), MapOf(3, shape, strides, box, 4)),
    )


def test_maps_are_bound_to_the_arrays_of_the_call():
    arrays = [Array(name, 1 << 18) for name in "abcd"]
    *pointers, maps = bound(read(DUMP), arrays)
    assert pointers == [arrays[2], arrays[0]]
    assert maps == TensorMaps(
        (
            TensorMap(arrays[1], (64, 8, 64), (512, 64, 1), (8, 1, 64), 2),
            TensorMap(arrays[3], (64, 8, 64), (512, 64, 1), (8, 1, 64), 4),
        )
    )


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("%34 = llvm.inttoptr %33", "%34 = llvm.add %33, %10", "%34 comes from an operation"),
        ("offset: [0]", "offset: [64]", "%34 comes from an operation"),
        ("%26 = llvm.insertvalue %1,", "%26 = llvm.insertvalue %2,", "not begin at its pointer"),
        ("%copy[128]", "%copy[64]", "%whole is neither an argument nor tensor maps"),
        ("%41[1]", "%41[%4]", "%42 comes from an operation"),
        ("args(%30", "args(%2", "%2 is neither"),
        ("gpu.launch_func", "llvm.call", "has no gpu.launch_func"),
    ],
)
def test_what_is_not_followed_is_refused(right, wrong, told):
    assert DUMP.count(right) == 1
    with pytest.raises(ValueError, match=told):
        read(DUMP.replace(right, wrong))
