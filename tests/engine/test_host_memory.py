"""What the process keeps of memory that was freed."""

from __future__ import annotations

import subprocess
import sys
import textwrap

MIB = 1 << 20


def test_freed_memory_is_kept_for_the_next_step_and_returned_when_asked() -> None:
    code = """
        import os, numpy as np
        from paxkv.engine.runner.malloc import keep_temporaries, return_freed

        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        assert keep_temporaries()
        before = resident()
        arrays = [np.ones(1 << 22, np.uint8) for _ in range(64)]
        end = np.ones(1 << 20, np.uint8)
        del arrays
        kept = resident()
        return_freed()
        print(kept - before, resident() - before, end.sum())
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True
    )
    kept, left, _ = map(int, ran.stdout.split())
    assert kept > 200 * MIB
    assert left < 20 * MIB
