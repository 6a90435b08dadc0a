"""The whole engine step as a GPU that is not there would run it: what XLA makes of the pages.

    benchmarks/offline_compile.sh

Compiles the largest step of each kind of a real model ahead of time and reads its HLO: the
attention kernel is called in every layer, every page array is donated and updated in its place, and
none is copied or transposed; a step that does not own its pages must be seen to copy them. Shows
nothing about speed.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh, NamedSharding, PartitionSpec

from pallas_kernels.lab.offline import TARGETS
from paxkv.cache.pages import PageLayout
from paxkv.engine.config import ResolvedConfig
from paxkv.engine.runner.attention import Kernels
from paxkv.engine.runner.buckets import Buckets
from paxkv.engine.runner.compiler import CompiledPrograms
from paxkv.engine.runner.program import Arguments, Variant
from paxkv.engine.runner.programs import FORWARD
from paxkv.models.config import ModelConfig
from paxkv.models.rope import rope_tables
from paxkv.models.weights import ArraySpec, describe

MODELS = {
    "SmolLM2-135M": ModelConfig(
        architecture="llama",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    ),
    "Llama-3-8B": ModelConfig(
        architecture="llama",
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        max_position_embeddings=8192,
    ),
}
# Chip, back end, type of the pages; Mosaic's kernel is for sm_90 and pages of the model's type.
COMPILED = (
    ("h200", "triton", "bfloat16"),
    ("a100", "triton", "bfloat16"),
    ("h200", "mosaic", "bfloat16"),
    ("h200", "triton", "int8"),
)
CALLED = {"triton": r"__gpu\$xla.gpu.triton", "mosaic": "mosaic_gpu_v2"}
# In every layer: a copy of pages each for keys and values, the write, attention. Copies and writes
# of the Mosaic back end are XLA's.
LEAST_CALLS = {"triton": 4, "mosaic": 1}
LIMITS = ResolvedConfig(
    max_model_len=8192,
    block_size=16,
    num_gpu_blocks=8191,
    max_num_seqs=64,
    max_num_batched_tokens=2048,
)


class Ahead:
    """In the place of the engine's `Compiler`: compiles for `target`, and keeps the HLO."""

    def __init__(self, target: str, donating: bool = True) -> None:
        self._donating = donating
        description = (TARGETS / f"{target}.txtpb").read_text()
        topology = topologies.get_topology_desc(
            platform="cuda", target_config=description, topology="1x1x1"
        )
        self._sharding = NamedSharding(
            topologies.make_mesh(topology, (1,), ("x",)), PartitionSpec()
        )
        kind = topology.devices[0].device_kind
        self.mesh = AbstractMesh((), (), abstract_device=AbstractDevice(kind, 1, "cuda"))

    def get(
        self,
        name: str,
        function: partial[Any],
        args: Callable[[], tuple[Any, ...]],
        donate: tuple[int, ...] = (),
    ) -> Any:
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._sharding), args()
        )
        with jax.sharding.use_abstract_mesh(self.mesh):
            donated = donate if self._donating else ()
            traced = jax.jit(function, donate_argnums=donated).trace(*shapes)
            return traced.lower(lowering_platforms=("cuda",)).compile()


def table(config: ModelConfig, target: Ahead, backend: str, page_dtype: str) -> CompiledPrograms:
    """The engine's own programs over shapes alone."""
    dtype, pages = np.dtype(jax.numpy.bfloat16), np.dtype(page_dtype)
    params = jax.tree.map(
        lambda spec: jax.ShapeDtypeStruct(spec.shape, dtype),
        describe(config),
        is_leaf=lambda x: isinstance(x, ArraySpec),
    )
    limits = replace(LIMITS, attention_backend=backend, layers_per_program=config.num_layers)
    with jax.sharding.use_abstract_mesh(target.mesh):
        kernels = Kernels.choose(config, limits, dtype, pages)
    arguments = Arguments(
        params,
        config,
        limits,
        ropes=rope_tables(config, LIMITS.max_model_len),
        layout=layout_of(config, kernels, page_dtype),
        num_pages=LIMITS.num_gpu_blocks + 1,
        buckets=Buckets.choose(LIMITS.max_num_seqs, LIMITS.max_num_batched_tokens),
        kernels=kernels,
        swapping=False,
    )
    found = CompiledPrograms(arguments)
    found.compiler = target  # type: ignore[assignment]
    return found


def layout_of(config: ModelConfig, kernels: Kernels, page_dtype: str) -> PageLayout:
    pages = np.dtype(page_dtype)
    return PageLayout.of(config, LIMITS.block_size, pages, kernels.page_layout)


def read(hlo: str, config: ModelConfig, layout: PageLayout, backend: str) -> dict[str, int]:
    """Counts of what matters, and `faults`: how many of them are not as they should be."""
    arrays = layout.arrays(LIMITS.num_gpu_blocks + 1)
    sizes = {math.prod(pages.shape) for pages in arrays}
    # In any shape: a kernel may see them as rows.
    moved = [
        shape
        for shape in re.findall(r"= \(?\w+\[([\d,]+)\]\S* (?:copy|copy-start|transpose)\(", hlo)
        if math.prod(map(int, shape.split(","))) in sizes
    ]
    aliases = re.search(r"input_output_alias={(.*?)}, entry", hlo, re.DOTALL)
    count = {
        "kernel calls": len(re.findall(f'custom_call_target="{CALLED[backend]}"', hlo)),
        "aliased": aliases.group(1).count("alias)") if aliases else 0,
        "pages copied or transposed": len(moved),
    }
    wrong = [
        count["kernel calls"] < LEAST_CALLS[backend] * config.num_layers,
        # The pages of every layer, and the block tables.
        count["aliased"] != len(arrays) * config.num_layers + 1,
        bool(moved),
    ]
    return count | {"faults": sum(wrong)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    rows = []
    for target, backend, pages in COMPILED:
        for name, config in MODELS.items():
            programs = table(config, Ahead(target), backend, pages)
            layout = layout_of(config, programs.arguments.kernels, pages)
            for shape in programs.arguments.largest_steps:
                text = programs.get(FORWARD, Variant(shape)).as_text()
                counts = read(text, config, layout, backend)
                step = {"target": target, "backend": backend, "pages": pages, "model": name}
                rows.append(step | {"step": shape.name} | counts)
                print(*rows[-1].values(), flush=True)
    planted = planted_fault()
    print("pages not donated:", *planted.values())
    found = {"jax": jax.__version__, "rows": rows, "planted, pages not donated": planted}
    args.json.write_text(json.dumps(found, indent=1) + "\n")
    seen = planted["pages copied or transposed"] and not planted["aliased"]
    return 1 if any(row["faults"] for row in rows) or not seen else 0


def planted_fault() -> dict[str, int]:
    """What is read of a step whose pages are not donated."""
    (target, backend, pages), (config, *_) = COMPILED[0], MODELS.values()
    programs = table(config, Ahead(target, donating=False), backend, pages)
    arguments = programs.arguments
    text = programs.get(FORWARD, Variant(arguments.largest_steps[0])).as_text()
    return read(text, config, layout_of(config, arguments.kernels, pages), backend)


if __name__ == "__main__":
    sys.exit(main())
