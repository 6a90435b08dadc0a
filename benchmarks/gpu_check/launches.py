"""What a launch costs, with and without command buffers, each in a process of its own.

XLA reads its flags once, so the setting cannot change within a process. XLA leaves Pallas' custom
calls out of command buffers by default (jax issue 27988).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from typing import Any

SETTINGS = {
    "default": "",
    "no command buffers": "--xla_gpu_enable_command_buffer=",
    "custom calls too": "--xla_gpu_enable_command_buffer=+CUSTOM_CALL",
}


def launches(chain: int, dry_run: bool, seconds: float) -> list[dict[str, Any]]:
    """A row for each setting: seconds of a launch in a chain of small kernels."""
    rows = []
    settings = {"default": ""} if dry_run else SETTINGS
    for name, flags in settings.items():
        environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {flags}".strip()
        command = [sys.executable, "-m", "benchmarks.gpu_check.launches", str(chain)]
        try:
            done = subprocess.run(
                command,
                env=environment,
                timeout=seconds / len(settings),
                capture_output=True,
                text=True,
            )
        except subprocess.TimeoutExpired:
            rows.append({"setting": name, "skipped": "out of time"})
            continue
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["it gave no reason"]
            rows.append({"setting": name, "skipped": lines[-1][:200]})
        else:
            rows.append({"setting": name, **json.loads(done.stdout.splitlines()[-1])})
    return rows


def main(chain: int) -> None:
    """Print seconds per kernel of a program of `chain` small attention calls, each using the last
    one's output, and of as many small XLA operations."""
    import jax
    import jax.numpy as jnp

    from pallas_kernels import ragged_paged_attention
    from pallas_kernels.lab.bench import Step
    from pallas_kernels.lab.clock import measure_wall

    small: dict[str, Any] = {}
    if jax.default_backend() == "cpu":
        small = {"heads": 4, "kv_heads": 2, "head_dim": 64}
    step = Step(batch=1, context=128, **small)
    arrays = step.arrays()

    one = partial(ragged_paged_attention, backend="triton")

    def attend(q: Any) -> Any:
        rest: dict[str, Any] = {name: x for name, x in arrays.items() if name != "q"}
        for _ in range(chain):
            q = one(q=q, **rest)
        return q

    def add(q: Any) -> Any:
        for _ in range(chain):
            # Sorting is a kernel that fuses with nothing.
            q = jnp.sort(q, axis=-1) + 1
        return q

    # The gaps between kernels are what is asked for.
    found = {
        f"seconds_per_{name}": measure_wall(jax.jit(call), [{"q": arrays["q"]}]).seconds / chain
        for name, call in (("attention", attend), ("xla_kernel", add))
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
