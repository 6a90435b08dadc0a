"""Seconds from starting Python to the first token, with warm caches, in fresh processes.

    python benchmarks/start_up.py --model smollm2-135m --runs 5 --json results/start_up.json

The first process fills the caches and is not counted. `cpu` is what a process spent in all its
threads: a machine that has other work shows in the difference.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FIRST_TOKEN = """
import json, sys, time
from paxkv import LLM, SamplingParams
llm = LLM(sys.argv[1], dtype="float32")
llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=1), False)
seconds = time.time() - float(sys.argv[2])
compiler = llm.engine.runner.compiler
print(json.dumps({
    "seconds": seconds, "cpu": time.process_time(), "of it programs": compiler.seconds,
    "programs": len(compiler.names), "traced": compiler.num_traced,
}))
"""


def start(model: str) -> dict[str, Any]:
    """One process: `seconds` from before its start to the first token, and what else it says."""
    command = [sys.executable, "-c", FIRST_TOKEN, model, str(time.time())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    start(arguments.model)
    runs = [start(arguments.model) for _ in range(arguments.runs)]
    result = {"median_seconds": statistics.median(run["seconds"] for run in runs), "runs": runs}
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
