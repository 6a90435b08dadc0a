"""What XLA made of a step: pages updated in place, never copied or transposed whole."""

from __future__ import annotations

import re
from functools import partial

import jax
import pytest

from paxkv.cache.swap import gather_pages, scatter_pages
from paxkv.engine.runner import programs
from paxkv.engine.runner.model_input import shapes
from paxkv.engine.runner.program import ONCE
from paxkv.engine.runner.runner import Runner
from paxkv.models import attention
from tests.engine.tiny import CONFIG, Tiny


def page_moves(runner: Runner, text: str) -> list[str]:
    """Instructions that copy or transpose a whole page array."""
    shapes = {",".join(map(str, pages.shape)) for pages in runner._pages[0]}
    return re.findall(rf"f32\[(?:{'|'.join(shapes)})\]\S* (?:copy|transpose)\(", text)


def whole_step(tiny: Tiny, donate: tuple[int, ...]) -> str:
    """HLO of the step as one program."""
    runner = tiny.engine.runner
    (shape,) = runner.programs.arguments.packings
    function = partial(
        programs.forward,
        packing=runner.programs.arguments.packings[shape],
        ropes=runner.programs.arguments.static["ropes"](ONCE),
        config=CONFIG,
        kernels=runner.programs.arguments.kernels,
        all_rows=0,
    )
    buffer = jax.ShapeDtypeStruct((runner.programs.arguments.packings[shape].size,), "int32")
    args = (runner._params, tuple(runner._pages), runner._tables, runner._last_tokens, buffer)
    return jax.jit(function, donate_argnums=donate).lower(*args).compile().as_text()


def test_pages_are_donated_and_never_copied() -> None:
    tiny = Tiny(deterministic=True)
    text = whole_step(tiny, donate=(1, 2))
    assert not page_moves(tiny.engine.runner, text)
    aliases = re.search(r"input_output_alias={(.*?)}, entry", text, re.DOTALL)
    assert aliases is not None
    # Keys and values of every layer, and the block tables.
    assert aliases.group(1).count("alias)") == 2 * CONFIG.num_layers + 1


def test_a_step_that_does_not_own_its_pages_is_seen_to_copy_them() -> None:
    tiny = Tiny(deterministic=True)
    assert page_moves(tiny.engine.runner, whole_step(tiny, donate=()))


@pytest.mark.parametrize("few", [attention.FEW_TOKENS, 0])
def test_few_tokens_leave_the_weight_of_a_product_on_its_left(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "FEW_TOKENS", few)
    tiny = Tiny(deterministic=True)
    (shape,) = tiny.engine.runner.programs.arguments.packings
    assert shape.num_tokens <= attention.FEW_TOKENS or few == 0
    width = (CONFIG.num_heads + 2 * CONFIG.num_kv_heads) * CONFIG.head_dim
    text = whole_step(tiny, donate=(1, 2))
    as_written = rf"f32\[{width},{shape.num_tokens}\]\S* dot\("
    turned = rf"f32\[{shape.num_tokens},{width}\]\S* dot\("
    assert len(re.findall(as_written if few else turned, text)) == CONFIG.num_layers
    assert not re.search(turned if few else as_written, text)


def test_the_shapes_are_few_and_named_apart() -> None:
    tiny = Tiny()
    found = shapes(tiny.engine.config, tiny.engine.input_builder.buckets)
    assert len({shape.name for shape in found}) == len(found) <= 12


def swap_in(runner: Runner, donate: tuple[int, ...]) -> str:
    """HLO of the program that writes pages from host memory."""
    pages, ids = tuple(runner._pages), jax.ShapeDtypeStruct((8,), "int32")
    content = jax.eval_shape(gather_pages, pages, ids)
    args = (pages, content, ids, jax.ShapeDtypeStruct((), "int32"))
    return jax.jit(scatter_pages, donate_argnums=donate).lower(*args).compile().as_text()


def test_pages_from_host_memory_are_written_in_place() -> None:
    runner = Tiny(deterministic=True).engine.runner
    assert not page_moves(runner, swap_in(runner, donate=(0,)))
    assert page_moves(runner, swap_in(runner, donate=()))
