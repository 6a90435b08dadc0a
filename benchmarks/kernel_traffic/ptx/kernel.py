"""PTX text as blocks of instructions (NVIDIA, "Parallel Thread Execution ISA")."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\((.*?)\)(.*?)\{", re.DOTALL)
_GUARD = re.compile(r"@(!?)(%?[\w$]+)\s+")
_LABEL = re.compile(r"\s*([\w$]+):(?!:)")
_LABELS = re.compile(r"\s*([\w$]+:\s*)*")


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
    # Comments, and lines of the source, which no semicolon ends.
    text = re.sub(r"//[^\n]*|^[ \t]*\.loc\b[^\n]*", "", text, flags=re.MULTILINE)
    entry = _ENTRY.search(text)
    if entry is None:
        raise ValueError("the PTX has no .entry")
    parameters = tuple(re.findall(r"([\w$]+)\s*(?:\[\d+\]\s*)?(?:,|$)", entry.group(2).strip()))
    blocks: list[list[Instruction]] = [[]]
    labels: dict[str, int] = {}
    branches: list[tuple[int, tuple[int, ...]]] = []
    for statement, line, scopes in _statements(text, entry.end()):
        while (label := _LABEL.match(statement)) is not None:
            labels[_scoped(label.group(1), scopes)] = len(blocks)
            blocks.append([])
            statement = statement[label.end() :]
        instruction = _instruction(statement.strip(), line)
        if instruction is None:
            continue
        blocks[-1].append(instruction)
        if instruction.kind == "bra":
            branches.append((len(blocks) - 1, scopes))
        if instruction.kind in ("bra", "ret", "exit"):
            blocks.append([])
    for index, scopes in branches:
        blocks[index][-1] = _resolved(blocks[index][-1], scopes, labels)
    return Kernel(entry.group(1), parameters, tuple(tuple(block) for block in blocks), labels)


def _scoped(label: str, scopes: tuple[int, ...]) -> str:
    """Scopes in braces have labels of their own."""
    return ".".join([label, *map(str, scopes)])


def _resolved(branch: Instruction, scopes: tuple[int, ...], labels: dict[str, int]) -> Instruction:
    """To the label of the innermost scope that has it."""
    names = [_scoped(branch.operands[0], scopes[:depth]) for depth in range(len(scopes), -1, -1)]
    return replace(branch, operands=(next(name for name in names if name in labels),))


def _statements(text: str, start: int) -> list[tuple[str, int, tuple[int, ...]]]:
    """What stands between semicolons up to the end of the body, the line it ends on, and the scopes
    around it, by number. Labels in front of a brace that begins or ends a scope stand alone.
    """
    found: list[tuple[str, int, tuple[int, ...]]] = []
    scopes: tuple[int, ...] = ()
    opened, vectors, begin = 0, 0, start

    def take(at: int) -> int:
        found.append((text[begin:at], text.count("\n", 0, at) + 1, scopes))
        return at + 1

    for at in range(start, len(text)):
        letter = text[at]
        if letter == ";":
            begin = take(at)
        elif letter not in "{}":
            continue
        elif vectors == 0 and _LABELS.fullmatch(text, begin, at):
            begin = take(at)
            if letter == "{":
                opened += 1
                scopes = (*scopes, opened)
            elif not scopes:
                break
            else:
                scopes = scopes[:-1]
        else:
            vectors += 1 if letter == "{" else -1
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
