"""PTX text as blocks of instructions (NVIDIA, "Parallel Thread Execution ISA")."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\((.*?)\)(.*?)\{", re.DOTALL)
_GUARD = re.compile(r"@(!?)(%?[\w$]+)\s+")
_LABEL = re.compile(r"\s*([\w$]+):")


@dataclass(frozen=True)
class Instruction:
    """One statement.

    opcode: split at its dots. operands: as written, vectors and addresses whole. guard: the
    predicate register and the value it must have; None for always. line: in the file, from 1.
    """

    opcode: tuple[str, ...]
    operands: tuple[str, ...]
    guard: tuple[str, bool] | None
    line: int

    @property
    def kind(self) -> str:
        """`ld`, `add`, …"""
        return self.opcode[0]


@dataclass(frozen=True)
class Kernel:
    """An entry point.

    parameters: names in order. blocks: instructions between labels, in the order of the text.
    labels: of the blocks that have one, their index.
    """

    name: str
    parameters: tuple[str, ...]
    blocks: tuple[tuple[Instruction, ...], ...]
    labels: dict[str, int]


def parse(text: str) -> Kernel:
    """The first entry point of a PTX file.

    Raises:
        ValueError: there is none.
    """
    text = re.sub(r"//[^\n]*", "", text)
    entry = _ENTRY.search(text)
    if entry is None:
        raise ValueError("the PTX has no .entry")
    parameters = tuple(re.findall(r"([\w$]+)\s*(?:,|$)", entry.group(2).strip()))
    blocks: list[list[Instruction]] = [[]]
    labels: dict[str, int] = {}
    for statement, line in _statements(text, entry.end()):
        while (label := _LABEL.match(statement)) is not None:
            labels[label.group(1)] = len(blocks)
            blocks.append([])
            statement = statement[label.end() :]
        instruction = _instruction(statement.strip(), line)
        if instruction is None:
            continue
        blocks[-1].append(instruction)
        if instruction.kind in ("bra", "ret", "exit"):
            blocks.append([])
    return Kernel(entry.group(1), parameters, tuple(tuple(block) for block in blocks), labels)


def _statements(text: str, start: int) -> list[tuple[str, int]]:
    """What stands between semicolons up to the end of the body, and the line it ends on.

    Braces of vectors stay; those of scopes, which begin or end a statement, do not.
    """
    found, depth, begin = [], 0, start
    for at in range(start, len(text)):
        letter = text[at]
        if letter == ";":
            found.append((text[begin:at], text.count("\n", 0, at) + 1))
            begin = at + 1
        elif letter == "{":
            if not text[begin:at].strip():
                begin = at + 1
            depth += 1
        elif letter == "}":
            if depth == 0:
                break
            if not text[begin:at].strip():
                begin = at + 1
            depth -= 1
    return found


def _instruction(statement: str, line: int) -> Instruction | None:
    if not statement or statement.startswith("."):
        return None
    guard = None
    if (found := _GUARD.match(statement)) is not None:
        guard = (found.group(2), found.group(1) != "!")
        statement = statement[found.end() :]
    name, *rest = statement.split(maxsplit=1)
    return Instruction(tuple(name.split(".")), _operands("".join(rest)), guard, line)


def _operands(text: str) -> tuple[str, ...]:
    """Split at commas outside braces and brackets."""
    found, depth, begin = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "{[(") - (letter in "}])")
        if letter == "," and depth == 0:
            found.append(text[begin:at].strip())
            begin = at + 1
    last = text[begin:].strip()
    return (*found, last) if last else tuple(found)
