"""Bytes that calls of the kernels must move at least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.kernel_traffic.launches import Launch


@dataclass(frozen=True)
class Ideal:
    """What a call must move, in bytes.

    total: everything. pages: read from pages by programs that each read what their queries see,
    once. once: of pages, at least once whoever reads it. written: into pages.
    """

    total: int
    pages: int
    once: int
    written: int = 0


def attention_ideal(
    arguments: dict[str, np.ndarray], launched: Sequence[Launch], window: int | None = None
) -> Ideal:
    """What attention over pages must move.

    Programs are as the launches have them: how many tokens share one is in their tile tables, how
    many share the keys of a tile in their grids.
    """
    attention = [x for x in launched if x.kernel == "paged_attention"]
    keys, once, cells = _seen(arguments, attention, window)
    return _ideal(arguments, attention, keys, once, cells)


def mosaic_ideal(
    arguments: dict[str, np.ndarray], launched: Sequence[Launch], window: int | None = None
) -> Ideal:
    """What Mosaic GPU's kernel must move: queries and keys read, results of each launch written.

    Packing the queries and merging the splits are XLA's.
    """
    attention = [x for x in launched if x.kernel == "mosaic_attention"]
    keys, once, cells = _seen(arguments, attention, window)
    num_tokens, heads, head_dim = arguments["q"].shape
    row, per_key = arguments["q"].nbytes // num_tokens, _per_key(arguments)
    total = keys * per_key + 4 * cells + num_tokens * row
    for launch in attention:
        splits, tokens = launch.grid[2], int(_tiles(launch)[:, 2].sum())
        out = heads * head_dim * 4 if splits > 1 else row
        total += splits * tokens * (out + heads * 4)
    return Ideal(total, keys * per_key, once * per_key)


def _seen(
    arguments: dict[str, np.ndarray], attention: list[Launch], window: int | None
) -> tuple[int, int, int]:
    """Keys that programs see, those that any sees, and entries of the block tables."""
    lengths, starts = arguments["kv_lens"], arguments["query_start"]
    page_size = arguments["k_pages"].shape[2]
    counts = np.diff(starts)
    shared = max(int(_tiles(x)[:, 2].max()) for x in attention)
    keys = once = cells = 0
    for length, new in zip(lengths.tolist(), counts.tolist()):
        per_tile = 1 if new == 1 else shared
        for first in range(length - new, length, per_tile):
            end = min(first + per_tile, length)
            begin = 0 if window is None else max(0, first - window + 1)
            keys += end - begin
            cells += -(-end // page_size) - begin // page_size
        if new:
            once += length - (0 if window is None else max(0, length - new - window + 1))
    return keys, once, cells


def cascade_ideal(arguments: dict[str, np.ndarray], launched: Sequence[Launch]) -> Ideal:
    """What attention with a shared prefix must move: the prefix once for each tile of all queries,
    the rest for each sequence of one query.
    """
    shared, page_size = int(arguments["shared_len"]), arguments["k_pages"].shape[2]
    attention = [x for x in launched if x.kernel == "paged_attention"]
    prefixes = -(-len(arguments["q"]) // int(_tiles(attention[0])[:, 2].max()))
    rest = int((arguments["kv_lens"] - shared).sum())
    keys = prefixes * shared + rest
    return _ideal(arguments, attention, keys, shared + rest, keys // page_size)


def _ideal(
    arguments: dict[str, np.ndarray], attention: list[Launch], keys: int, once: int, cells: int
) -> Ideal:
    q, per_key = arguments["q"], _per_key(arguments)
    num_tokens, heads, head_dim = q.shape
    # Each launch reads its queries and writes its part of the results.
    row = heads * head_dim * q.dtype.itemsize
    total = keys * per_key + 4 * cells + num_tokens * (2 * row + 4 * heads)
    for launch in attention:
        splits = launch.grid[2]
        if splits > 1:
            # Float32 partial results and their log-sum-exps, written and read.
            total += 2 * splits * int(_tiles(launch)[:, 2].sum()) * heads * (head_dim + 1) * 4
    return Ideal(total, keys * per_key, once * per_key)


def _per_key(arguments: dict[str, np.ndarray]) -> int:
    """Bytes of a key and its value, of all heads, with their factors."""
    k_pages = arguments["k_pages"]
    _, kv_heads, _, head_dim = k_pages.shape
    factors = 2 * kv_heads * 4 if "k_scale" in arguments else 0
    return 2 * kv_heads * head_dim * k_pages.dtype.itemsize + factors


def _tiles(launch: Launch) -> np.ndarray:
    """`[num_tiles, 4]`: sequence, first token, tokens, position of the first."""
    found = next(x for x in launch.operands if x.value is not None and x.value.shape[1:] == (4,))
    assert found.value is not None
    return found.value


def write_ideal(arguments: dict[str, np.ndarray]) -> Ideal:
    """New keys and values read, and written into pages."""
    k, pages = arguments["k"], arguments["k_pages"]
    page_size = pages.shape[2]
    written = int((arguments["slot_mapping"] >= page_size).sum())
    rows = 2 * written * k.shape[1]
    stored = rows * (k.shape[2] * pages.dtype.itemsize + (4 if "k_scale" in arguments else 0))
    read = rows * k.shape[2] * k.dtype.itemsize
    return Ideal(read + stored + k.shape[0] * 4, 0, stored, stored)


def copy_ideal(arguments: dict[str, np.ndarray]) -> Ideal:
    """Pages read, and written elsewhere."""
    pages, pairs = arguments["pages"], int(arguments["count"])
    size = pairs * int(np.prod(pages.shape[1:])) * pages.dtype.itemsize
    return Ideal(2 * size, size, 2 * size, size)


def matmul_ideal(arguments: dict[str, np.ndarray], launched: Sequence[Launch]) -> Ideal:
    """What a product with packed weights must move: each program its weights and its tokens, and
    the sums of each share of the inputs.
    """
    (launch,) = launched
    output_tiles, token_tiles, _ = launch.grid
    packed, x = arguments["packed"], arguments["x"]
    weights = sum(arguments[name].nbytes for name in ("packed", "scale", "zero"))
    out = launch.operands[-1].nbytes
    total = weights * token_tiles + x.nbytes * output_tiles + out
    return Ideal(total, packed.nbytes * token_tiles, packed.nbytes)
