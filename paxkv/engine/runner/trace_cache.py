"""Programs as JAX traced and lowered them, kept on disk, so that a second start traces nothing.

JAX's persistent cache spares XLA's work, but its key is made of the lowered program, and tracing
and lowering take most of a warm start. What is kept here is that program (StableHLO, as
`jax.export` writes it), under a key that needs no tracing: the function, its static arguments, the
shapes, the source text of everything that can be traced, and the kernels' tuned sizes.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import tempfile
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import jax
from jax import export

import pallas_kernels
from pallas_kernels import dispatch as choice
from pallas_kernels import tuned

logger = logging.getLogger(__name__)

_DIGEST_BYTES = hashlib.sha256().digest_size
_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_numpy_dtype_promotion",
    "jax_threefry_partitionable",
)
# Custom calls that Pallas makes on GPUs. Their format may change with jaxlib, which is in the key.
UNSTABLE_CALLS = ("__gpu$xla.gpu.triton", "triton_kernel_call", "mosaic_gpu", "mosaic_gpu_v2")


class TraceCache:
    """Traced programs in one folder, each in a file of its own behind the digest of its content.

    Whatever is missing, damaged or cannot be written is traced again: nothing here is an error.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def beside_compilation_cache(cls) -> TraceCache | None:
        """Trace cache beside JAX's persistent cache, if that is a local folder and in use."""
        directory = _setting("jax_compilation_cache_dir")
        if not directory or "://" in directory or not _setting("jax_enable_compilation_cache"):
            return None
        return cls(Path(directory) / "traced")

    def load(self, key: str) -> export.Exported | None:
        try:
            content = self._file(key).read_bytes()
        except OSError:
            return None
        digest, program = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(program).digest() != digest:
            logger.warning("%s is damaged: the program is traced again", self._file(key))
            return None
        return export.deserialize(bytearray(program))

    def save(self, key: str, exported: export.Exported) -> None:
        program = bytes(exported.serialize())
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.directory) as folder:
                written = Path(folder) / "program"
                written.write_bytes(hashlib.sha256(program).digest() + program)
                os.replace(written, self._file(key))
        except OSError as error:
            logger.warning("%s cannot be kept: %s", self._file(key), error)

    def _file(self, key: str) -> Path:
        return self.directory / f"{key}.stablehlo"


def traced(function: Any, args: Sequence[Any], donate: tuple[int, ...]) -> export.Exported:
    """`function` of arrays shaped like `args`, traced and lowered for JAX's default platform.

    Raises NotImplementedError or ValueError for what `jax.export` cannot write down, such as
    callbacks into Python.
    """
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in UNSTABLE_CALLS]
    jitted = jax.jit(function, donate_argnums=donate)
    return export.export(jitted, disabled_checks=checks)(*args)


def trace_key(function: functools.partial[Any], args: Any, donate: tuple[int, ...]) -> str:
    """Key of everything that a trace depends on. Static arguments must have a complete repr."""
    shapes, structure = jax.tree.flatten(args)
    parts = [
        f"{function.func.__module__}.{function.func.__qualname__}",
        repr((function.args, sorted(function.keywords.items()))),
        repr([(x.shape, str(x.dtype)) for x in shapes]),
        str(structure),
        repr(donate),
        repr(surroundings()),
        _code(),
    ]
    if " at 0x" in parts[1]:
        raise TypeError(f"a static argument has no repr that outlives the process: {parts[1]}")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def surroundings() -> tuple[Hashable, ...]:
    """Settings of the process that a trace depends on, besides function and arguments."""
    device = jax.default_backend(), choice.current_capability(), tuned.device_kind()
    return (*(_setting(name) for name in _SETTINGS), tuned.fingerprint(), *device)


def _setting(name: str) -> Any:
    return getattr(jax.config, name)


@functools.cache
def _code() -> str:
    """Digest of the text that is traced, and of the version of what traces it."""
    digest = hashlib.sha256(f"{jax.__version__} {jax.lib.__version__}".encode())
    for root in (Path(__file__).parents[1], Path(pallas_kernels.__file__).parent):
        for file in sorted(root.rglob("*.py")):
            digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
