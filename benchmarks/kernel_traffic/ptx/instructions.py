"""What each PTX instruction does to registers and memory, as functions to call.

Instructions that only make register values and are not listed here (floating point, matrix
products, conversions) give an unknown result.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.kernel_traffic.ptx.arithmetic import BINARY, COMPARE, TERNARY, UNARY
from benchmarks.kernel_traffic.ptx.bulk import copy_tensor, elect, expect, store_bulk, wait
from benchmarks.kernel_traffic.ptx.kernel import Instruction
from benchmarks.kernel_traffic.ptx.operands import (
    address_of,
    as_integer,
    guarded,
    integer,
    operand,
    raw,
    text_of,
    vector,
    writer,
)
from benchmarks.kernel_traffic.ptx.registers import NOWHERE, both
from benchmarks.kernel_traffic.ptx.transfers import (
    Step,
    copy,
    load_global,
    load_matrix,
    load_shared,
    store_global,
    store_matrix,
    store_shared,
)

_INTEGER = re.compile(r"[sub](\d+)$")
# Synchronise, or say how to run; all threads of a batch are in step anyway.
_NOTHING = {"bar", "barrier", "fence", "membar", "griddepcontrol", "setmaxnreg", "nop", "pragma"}
_NO_RESULT = {"commit_group", "wait_group", "wait_all", "fence", "commit", "wait"}
# Move memory in ways that are not followed.
_MOVERS = {"ld", "ldu", "st", "atom", "red", "cp", "call", "multimem", "mbarrier", "prefetch"}


def compiled(instruction: Instruction, parameters: dict[str, int]) -> Step:
    """The instruction as a function of `machine.Threads`.

    Args:
        parameters: address of each parameter of the kernel.
    """
    try:
        return _compiled(instruction, parameters)
    except (KeyError, IndexError) as error:
        raise NotImplementedError(f"line {instruction.line}: {text_of(instruction)}") from error


def _compiled(instruction: Instruction, parameters: dict[str, int]) -> Step:
    kind, opcode, operands = instruction.kind, instruction.opcode, instruction.operands
    if kind == "bra":
        return _branch(instruction)
    if kind in ("ret", "exit"):
        return _leave(instruction)
    if kind in _NOTHING or (kind in ("cp", "wgmma", "tcgen05") and _NO_RESULT & set(opcode)):
        return _skip
    if kind == "ld" and opcode[1].startswith("param"):
        return _parameter(operands[0], parameters[address_of(operands[1])[0]])
    if kind in ("ld", "ldu") and "global" in opcode:
        return load_global(instruction)
    if kind == "st" and "global" in opcode:
        return store_global(instruction)
    if kind == "ld" and opcode[1].startswith("shared"):
        return load_shared(instruction)
    if kind == "st" and opcode[1].startswith("shared"):
        return store_shared(instruction)
    if kind == "ldmatrix":
        return load_matrix(instruction)
    if kind == "stmatrix":
        return store_matrix(instruction)
    if opcode[:2] == ("cp", "async") and opcode[2] in ("ca", "cg"):
        return copy(instruction)
    if opcode[:4] == ("cp", "async", "bulk", "tensor"):
        return copy_tensor(instruction)
    if opcode[:3] == ("cp", "async", "bulk"):
        return store_bulk(instruction)
    if opcode[:2] == ("mbarrier", "try_wait"):
        return wait(instruction)
    if opcode[:3] == ("mbarrier", "arrive", "expect_tx"):
        return expect(instruction)
    if kind == "mbarrier" and opcode[1] in ("init", "inval", "arrive"):
        return _forget(instruction)
    if opcode == ("prefetch", "tensormap"):
        return _skip
    if kind == "elect":
        return elect(instruction)
    if kind == "shfl":
        return _shuffle(instruction)
    if kind == "setp" and _INTEGER.match(opcode[-1]):
        return _compare(instruction)
    if kind in ("mov", "cvta"):
        return _move(instruction)
    if kind == "cvt" and all(map(_INTEGER.match, opcode[-2:])):
        return _convert(instruction)
    if kind == "selp":
        return _select(instruction)
    if opcode[-1] == "pred" or _INTEGER.match(opcode[-1]):
        for arity, functions in ((1, UNARY), (2, BINARY), (3, TERNARY)):
            name = ".".join(x for x in opcode[:-1] if x in ("lo", "hi", "wide") or x == kind)
            if name in functions and len(operands) == arity + 1:
                return _arithmetic(instruction, functions[name])
    if kind in _MOVERS:
        raise NotImplementedError(f"line {instruction.line}: {text_of(instruction)}")
    return _forget(instruction)


def _skip(threads: Any) -> None:
    return None


def _branch(instruction: Instruction) -> Step:
    guard = guarded(instruction)

    def step(threads: Any) -> np.ndarray:
        return threads.registers.lanes_of(guard(threads.registers))

    return step


_leave = _branch


def _parameter(name: str, address: int) -> Step:
    value = np.full(1, address, np.uint64)

    def step(threads: Any) -> None:
        threads.registers.write(name, value)

    return step


def _forget(instruction: Instruction) -> Step:
    names = [x for x in vector(instruction.operands[0]) if x.startswith("%")]
    names = [name for part in names for name in part.split("|")]
    nothing = np.zeros(1, np.uint64)

    def step(threads: Any) -> None:
        for name in names:
            threads.registers.write(name, nothing, NOWHERE)

    return step if instruction.operands else _skip


def _arithmetic(instruction: Instruction, function: Callable[..., np.ndarray]) -> Step:
    target, *sources = instruction.operands
    reads, write = [operand(text) for text in sources], writer(instruction)
    logical = instruction.opcode[-1] == "pred"
    dtype = np.dtype(bool) if logical else integer(instruction.opcode[-1])

    def step(threads: Any) -> None:
        registers, values, where = threads.registers, [], None
        for read in reads:
            value, known = read(registers)
            if known is NOWHERE:
                return write(registers, target, value, NOWHERE)
            values.append(value.astype(bool) if logical else as_integer(value, dtype))
            where = both(where, known)
        return write(registers, target, raw(function(*values)), where)

    return step


def _move(instruction: Instruction) -> Step:
    target, source = instruction.operands
    if "{" in target or "{" in source:
        return _forget(instruction)
    kind = instruction.opcode[-1]
    dtype = None if kind == "pred" else integer(kind)
    read, write = operand(source), writer(instruction)

    def step(threads: Any) -> None:
        value, known = read(threads.registers)
        value = value.astype(bool) if dtype is None else as_integer(value, dtype)
        write(threads.registers, target, value, known)

    return step


def _convert(instruction: Instruction) -> Step:
    target, source = instruction.operands
    to, origin = (integer(name) for name in instruction.opcode[-2:])
    if "sat" in instruction.opcode:
        return _forget(instruction)
    read, write = operand(source), writer(instruction)

    def step(threads: Any) -> None:
        value, known = read(threads.registers)
        write(threads.registers, target, raw(as_integer(value, origin).astype(to)), known)

    return step


def _select(instruction: Instruction) -> Step:
    target, *sources = instruction.operands
    dtype = np.dtype(f"u{integer(instruction.opcode[-1]).itemsize}")
    (yes, no, which), write = [operand(text) for text in sources], writer(instruction)

    def step(threads: Any) -> None:
        registers = threads.registers
        (a, a_known), (b, b_known) = yes(registers), no(registers)
        condition, known = which(registers)
        if known is NOWHERE or (a_known is NOWHERE and b_known is NOWHERE):
            return write(registers, target, a, NOWHERE)
        condition = condition.astype(bool)
        value = np.where(condition, as_integer(a, dtype), as_integer(b, dtype))
        if a_known is not None or b_known is not None:
            a_where = np.broadcast_to(True if a_known is None else a_known, registers.lanes)
            b_where = np.broadcast_to(True if b_known is None else b_known, registers.lanes)
            known = both(known, np.where(condition, a_where, b_where))
        return write(registers, target, value, known)

    return step


def _compare(instruction: Instruction) -> Step:
    targets = instruction.operands[0].split("|")
    a, b = (operand(text) for text in instruction.operands[1:3])
    third = operand(instruction.operands[3]) if len(instruction.operands) > 3 else None
    function, dtype = COMPARE[instruction.opcode[1]], integer(instruction.opcode[-1])
    join = BINARY[instruction.opcode[2]] if third is not None else None
    write = writer(instruction)

    def step(threads: Any) -> None:
        registers = threads.registers
        (left, left_known), (right, right_known) = a(registers), b(registers)
        where = both(left_known, right_known)
        value = function(as_integer(left, dtype), as_integer(right, dtype))
        values = [value, ~value]
        if third is not None and join is not None:
            more, more_known = third(registers)
            where = both(where, more_known)
            values = [join(x, more.astype(bool)) for x in values]
        for name, result in zip(targets, values):
            write(registers, name, result, where)

    return step


def _shuffle(instruction: Instruction) -> Step:
    """Only whole warps without clamps other than 31, which is all that compilers make."""
    mode = next(x for x in instruction.opcode if x in ("bfly", "idx", "up", "down"))
    target = instruction.operands[0].split("|")[0]
    read, by = operand(instruction.operands[1]), operand(instruction.operands[2])
    others = instruction.operands[0].split("|")[1:]
    write = writer(instruction)
    whole = instruction.operands[3] == ("0" if mode == "up" else "31")

    def step(threads: Any) -> None:
        registers = threads.registers
        (value, known), (lane_by, by_known) = read(registers), by(registers)
        for name in others:
            write(registers, name, np.zeros(1, bool), NOWHERE)
        if known is NOWHERE or not registers.knows(by_known) or not whole:
            return write(registers, target, value, NOWHERE)
        lane = np.arange(registers.lanes)
        shift = np.broadcast_to(as_integer(lane_by, np.dtype(np.uint32)), registers.lanes).astype(
            int
        )
        source = {
            "bfly": (lane % 32) ^ shift,
            "idx": shift % 32,
            "up": lane % 32 - shift,
            "down": lane % 32 + shift,
        }[mode]
        source = lane // 32 * 32 + np.where((source < 0) | (source > 31), lane % 32, source)
        if known is not None:
            known = np.broadcast_to(known, registers.lanes)[source]
        return write(registers, target, np.broadcast_to(value, registers.lanes)[source], known)

    return step
