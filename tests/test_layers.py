"""The layers: an import may only point down, and files stay small."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("paxkv", "pallas_kernels", "convert")

# A module belongs to the layer of its longest prefix here.
LAYER_OF = {
    "paxkv": "people",
    "paxkv.engine": "engine",
    "paxkv.outputs": "engine",
    "paxkv.validation": "device",
    "paxkv.fields": "device",
    "paxkv.text": "engine",
    "paxkv.memory": "memory",
    "paxkv.models": "device",
    "paxkv.sampling": "device",
    "paxkv.cache": "device",
    "convert": "checkpoints",
    "pallas_kernels": "kernels",
}
MAY_IMPORT = {
    "people": {"people", "engine", "memory", "device", "checkpoints", "kernels"},
    "engine": {"engine", "memory", "device", "kernels"},
    "memory": {"memory"},
    "device": {"device", "kernels"},
    "checkpoints": {"checkpoints"},
    "kernels": {"kernels"},
}
# Checkpoints describe themselves in the model's terms and build the tokenizer stored with them.
DESCRIPTIONS = (
    "paxkv.models.config",
    "paxkv.models.families",
    "paxkv.models.weights",
    "paxkv.text.tokenizer",
)
NOT_SHIPPED = ("benchmarks", "tests")
THIRD_PARTY = {"memory": {"numpy"}, "kernels": {"jax", "numpy"}}
# Where it is there.
OPTIONAL = {"pallas_kernels.lab.picture": {"matplotlib"}}
GPU_BACK_ENDS = ("jax.experimental.pallas.triton", "jax.experimental.pallas.mosaic_gpu")

MAX_LINES = 500
# A model, a kernel or a battery of tests may be longer.
MAY_BE_LONGER: set[str] = set()


def source_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def layer_of(module: str) -> str:
    prefix = max((known for known in LAYER_OF if is_within(module, known)), key=len)
    return LAYER_OF[prefix]


def imported_names(source: str) -> set[str]:
    """Dotted names a source imports, `from a import b` as `a.b`, function bodies included."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide which layer they reach"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def violations(path: Path, source: str) -> list[str]:
    """What the imports of `source`, as the file at `path`, do against the rules."""
    module = module_name(path)
    layer = layer_of(module)
    found = []
    for name in sorted(imported_names(source)):
        top = name.split(".")[0]
        if top in PACKAGES:
            allowed = layer_of(name) in MAY_IMPORT[layer]
            if layer == "checkpoints" and any(is_within(name, prefix) for prefix in DESCRIPTIONS):
                allowed = True
            if module == "paxkv":
                # The package's own front door re-exports, lazily.
                allowed = True
        elif top in NOT_SHIPPED:
            allowed = False
        else:
            allowed = (
                layer not in THIRD_PARTY
                or top in THIRD_PARTY[layer] | OPTIONAL.get(module, set())
                or top in sys.stdlib_module_names
            )
            if any(is_within(name, back_end) for back_end in GPU_BACK_ENDS):
                allowed = is_gpu_back_end(path)
        if not allowed:
            found.append(f"{module} ({layer}) imports {name}")
    return found


def is_gpu_back_end(path: Path) -> bool:
    """Kernel files or folders named after the back end they are written for."""
    parts = path.relative_to(ROOT).parts
    return parts[0] == "pallas_kernels" and any(
        part.startswith(("triton", "mosaic")) for part in parts[1:]
    )


@pytest.mark.parametrize("path", source_files(*PACKAGES), ids=module_name)
def test_imports_point_down(path: Path) -> None:
    assert violations(path, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("paxkv/memory/pool.py", "import jax"),
        ("paxkv/memory/pool.py", "from paxkv.cache import pages"),
        ("paxkv/memory/pool.py", "def f():\n    import jax.numpy as jnp"),
        ("paxkv/engine/engine.py", "from paxkv.llm import LLM"),
        ("paxkv/engine/engine.py", "import paxkv.cli.main"),
        ("paxkv/cli/bench.py", "from benchmarks.studies import prefix"),
        ("paxkv/engine/engine.py", "from convert import load_params"),
        ("paxkv/models/decoder.py", "from paxkv.engine.runner.model_input import ModelInput"),
        ("paxkv/models/decoder.py", "from paxkv.memory import pool"),
        ("convert/load.py", "from paxkv.models.decoder import forward"),
        ("convert/load.py", "from paxkv.engine.config import EngineConfig"),
        ("pallas_kernels/api.py", "import paxkv"),
        ("pallas_kernels/api.py", "import flax"),
        ("pallas_kernels/lab/bench.py", "import matplotlib"),
        ("pallas_kernels/api.py", "from jax.experimental.pallas import triton"),
        ("paxkv/models/decoder.py", "import jax.experimental.pallas.mosaic_gpu as mgpu"),
    ],
)
def test_a_wrong_import_is_caught(file: str, source: str) -> None:
    assert len(violations(ROOT / file, source)) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("pallas_kernels/triton_decode.py", "from jax.experimental.pallas import triton"),
        ("pallas_kernels/mosaic/decode.py", "import jax.experimental.pallas.mosaic_gpu"),
        ("convert/load.py", "from paxkv.models.weights import describe"),
        ("convert/load.py", "from paxkv.text.tokenizer import Tokenizer"),
        ("paxkv/cli/main.py", "from convert import resolve"),
        ("paxkv/engine/runner/runner.py", "from paxkv.memory.pool import BlockPool"),
    ],
)
def test_a_right_import_is_not(file: str, source: str) -> None:
    assert violations(ROOT / file, source) == []


def test_memory_does_not_load_jax() -> None:
    program = (
        "import sys, paxkv.memory; sys.exit(any(name in sys.modules for name in ('jax', 'jaxlib')))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("command", [["--version"], ["--help"]])
def test_the_command_line_answers_without_jax(command: list[str]) -> None:
    program = (
        "import sys\nfrom paxkv.cli.main import main\n"
        f"try: main({command!r})\nexcept SystemExit: pass\n"
        "sys.exit(any(name in sys.modules for name in ('jax', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_files_are_small() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in source_files(*PACKAGES, "tests", "benchmarks")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES
        and str(path.relative_to(ROOT)) not in MAY_BE_LONGER
    }
    assert long == {}
