"""Bugs put into the kernels on purpose: each rung of the ladder must be seen to catch one."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pallas_kernels import mosaic, triton
from pallas_kernels.contract import AttentionInputs, AttentionOptions


@dataclass(frozen=True)
class Plant:
    """Changes of a kernel: of each pair what stands once in its source, and what is put there."""

    name: str
    changes: tuple[tuple[str, str], ...]

    def module(self) -> ModuleType:
        """`triton/attention.py` with the bug.

        Raises:
            ValueError: what is to be replaced does not stand there, or several times.
        """
        return self._changed(Path(triton.__file__).with_name("attention.py"))

    def _changed(self, path: Path) -> ModuleType:
        source = path.read_text(encoding="utf-8")
        for right, wrong in self.changes:
            if source.count(right) != 1:
                raise ValueError(f"plant {self.name!r}: {right!r} must stand once in {path.name}")
            source = source.replace(right, wrong)
        return _module(source, path)

    def attend(self, **arguments: Any) -> Any:
        """`pallas_kernels.ragged_paged_attention` with the bug."""
        arguments.pop("backend", None)
        names = arguments.keys() & set(AttentionInputs._fields)
        inputs = AttentionInputs(**{name: arguments.pop(name) for name in names})
        if arguments.get("scale") is None:
            arguments["scale"] = inputs.q.shape[-1] ** -0.5
        return self.module().attention(inputs, AttentionOptions(**arguments))


@dataclass(frozen=True)
class MosaicPlant(Plant):
    """The same of Mosaic GPU's kernel."""

    def module(self) -> ModuleType:
        """`mosaic/attention.py` around `mosaic/kernel.py` with the bug."""
        folder = Path(mosaic.__file__).parent
        attention = folder / "attention.py"
        around = _module(attention.read_text(encoding="utf-8"), attention)
        around.__dict__["launch"] = self._changed(folder / "kernel.py").launch
        return around


def _module(source: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_loader("planted", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


_K = "k = plgpu.load(keys.k_pages.at[where], mask=in_page, other=0.0)"
_TABLE = "keys.block_tables.at[seq, position // page_size]"
_BEGIN = "begin = jnp.maximum(begin, first_position - score.window + 1)"

# More bytes than need be, which no comparison of results can see.
DOUBLE_LOAD = Plant(
    "keys loaded twice",
    (
        (
            _K,
            f"{_K}\n"
            "        again = plgpu.load(keys.k_pages.at[where], mask=in_page, other=1.0)\n"
            "        k = jnp.where(position[by_row] % 2 == 0, k, again)",
        ),
    ),
)
_ALL = "begin = jnp.maximum(begin, 0)"
WIDE_WINDOW = Plant("the window masks scores only", ((_BEGIN, _ALL),))
MOSAIC_DOUBLE_LOAD = MosaicPlant(
    "pages copied twice",
    (
        ("for index, row in enumerate(rows):", "for index, row in 2 * list(enumerate(rows)):"),
        (
            "come = plgpu.Barrier(num_arrivals=tile.keys // copied",
            "come = plgpu.Barrier(num_arrivals=2 * (tile.keys // copied)",
        ),
    ),
)
MOSAIC_WIDE_WINDOW = MosaicPlant(
    WIDE_WINDOW.name,
    (("begin = jnp.maximum(begin, first_position - (score.window - 1))", _ALL),),
)
# A page that is not the sequence's.
NEXT_PAGE = Plant("the next page", ((_TABLE, _TABLE.replace("page_size]", "page_size + 1]")),))
MOSAIC_NEXT_PAGE = MosaicPlant(
    NEXT_PAGE.name, (("block_tables[span.seq, column]", "block_tables[span.seq, column + 1]"),)
)
# Fine for the interpreter.
UNKNOWN_OPERATION = Plant(
    "an operation that Triton lacks",
    (
        (
            "weight = jnp.exp2(s - new_top[by_row])",
            "weight = jnp.exp2(jnp.round(s - new_top[by_row]))",
        ),
    ),
)
# Wrong results of some calls only: windows, groups that are no power of two, sinks.
SHORT_WINDOW = Plant(
    "the window one short",
    (
        (
            "position[None] > last[by_row] - score.window",
            "position[None] > last[by_row] - score.window + 1",
        ),
    ),
)
EVEN_GROUP = Plant(
    "rows by a group of a power of two",
    (("token = row // group", "token = row // padded(group)"),),
)
EVERY_SINK = Plant(
    "a sink in every split",
    (
        (
            "row_max = jnp.where(split == 0, sink, row_max)\n"
            "        total = jnp.where(split == 0, 1.0, total)",
            "row_max = sink\n        total = jnp.ones_like(total)",
        ),
    ),
)
