"""The documents agree with the code: links, outputs, pictures, and where a reader is sent."""

from __future__ import annotations

import re
import runpy
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def prose(path: Path) -> str:
    """The document without its code blocks."""
    return re.sub(r"^```.*?^```", "", text(path), flags=re.M | re.S)


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub makes of a document's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    broken = []
    for link in LINK.findall(prose(document)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_readme_is_short() -> None:
    assert len(text(ROOT / "README.md").split()) <= 1500


def test_architecture_shows_what_the_script_prints(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "docs/one_step.py"), run_name="__main__")
    printed = capsys.readouterr().out
    shown = re.search(
        r"^```text\n(schedule: .*?)^```$", text(ROOT / "docs/architecture.md"), re.M | re.S
    )
    assert shown is not None
    assert shown[1] == printed


def test_the_page_map_is_what_its_script_draws() -> None:
    drawn = runpy.run_path(str(ROOT / "docs/page_map.py"))["picture"]
    assert text(ROOT / "docs/page_map.svg") == drawn


def reader_rows() -> list[tuple[str, list[str]]]:
    """Each question of the table in CONTRIBUTING.md, and the steps to its answer."""
    table = text(ROOT / "CONTRIBUTING.md").split("| question | after README |\n| --- | --- |\n")[1]
    rows = [line.strip("| ").split(" | ") for line in table.split("\n\n")[0].splitlines()]
    return [(question, path.split(" → ")) for question, path in rows]


@pytest.mark.parametrize("question, steps", reader_rows(), ids=lambda value: str(value)[:40])
def test_a_reader_finds_the_answer_in_three_files(question: str, steps: list[str]) -> None:
    """README counts as one; it must link the next; what to look for must stand in each file."""
    assert len(steps) <= 2
    for number, step in enumerate(steps):
        found = re.match(r"\[[^\]]*\]\(([^)#]+)[^)]*\)(.*)", step)
        assert found is not None, step
        path, rest = found.groups()
        assert number or path in text(ROOT / "README.md"), f"README does not link {path}"
        names = re.findall(r"`([^`]+)`", rest)
        missing = [name for name in names if name not in text(ROOT / path)]
        assert not missing, f"{path} has no {missing}"


def test_names_in_the_tour_of_the_decode_kernel_are_those_of_its_source() -> None:
    section = text(ROOT / "docs/kernels.md").split("## Reading the decode kernel")[1]
    files = [*ROOT.glob("pallas_kernels/triton/*.py"), *ROOT.glob("pallas_kernels/*.py")]
    source = "".join(text(path) for path in files)
    names = set(re.findall(r"`([a-z]+(?:_[a-z]+)*)`", section.split("\n## ")[0]))
    missing = {name for name in names if not re.search(rf"\b{name}\b", source)}
    assert names
    assert not missing
