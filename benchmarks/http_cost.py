"""What HTTP and streaming cost: a workload offline and over HTTP, in turns, on one engine.

    python benchmarks/http_cost.py w1_offline_mixed.jsonl [--runs 3] [--json OUT]

Offline is `LLM.generate` on token ids, as `paxkv bench throughput` times it: no text is made. Over
HTTP the same requests come from `paxkv bench serve`, a process of its own on the same machine,
as streams, with text in every event. Both start with an empty prefix cache. CPU seconds are
this process's, engine and server: the clients' come on top.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from timing import write

from paxkv import LLM
from paxkv.bench.paxkv_engine import sampling_params
from paxkv.bench.workload import Workload, read_workload
from paxkv.server.app import build_app
from paxkv.server.running import GracefulServer, configuration, listen


def cpu_seconds() -> float:
    """Of this process, the clients' not included."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def offline(llm: LLM, workload: Workload) -> dict[str, float]:
    prompts = [{"prompt_token_ids": list(r.prompt_token_ids)} for r in workload.requests]
    params = [sampling_params(request) for request in workload.requests]
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    tokens = sum(len(each.token_ids) for output in outputs for each in output.outputs)
    return {"seconds": seconds, "tokens": tokens}


@contextmanager
def serving(llm: LLM) -> Iterator[int]:
    """A server of the engine in this process; its port."""
    app = build_app(llm, name="model")
    service = app.state.service
    socket = listen("127.0.0.1", 0)
    server = GracefulServer(configuration(service, app), service)
    thread = threading.Thread(target=lambda: server.run([socket]))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield socket.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def over_http(llm: LLM, path: Path, workload: Workload, concurrency: int) -> dict[str, float]:
    with serving(llm) as port, tempfile.NamedTemporaryFile("r") as report:
        command = [sys.executable, "-m", "paxkv.cli.main", "bench", "serve"]
        command += ["--base-url", f"http://127.0.0.1:{port}", "--num-warmups", "0"]
        command += ["--dataset-name", "jsonl", "--dataset-path", str(path)]
        command += ["--num-prompts", str(len(workload.requests))]
        command += ["--max-concurrency", str(concurrency), "--json", report.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (found,) = json.load(report)["runs"]
    if found["failed"]:
        raise RuntimeError(f"{found['failed']} requests failed: {found['errors'][:1]}")
    return {"seconds": found["duration"], "tokens": found["total_output_tokens"]}


def turn(llm: LLM, work: Callable[[], dict[str, float]]) -> dict[str, float]:
    llm.reset_prefix_cache()
    start, steps = cpu_seconds(), llm.stats().num_steps
    found = work()
    return {
        **found,
        "tokens_per_second": found["tokens"] / found["seconds"],
        "cpu_seconds": cpu_seconds() - start,
        "steps": llm.stats().num_steps - steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", type=Path)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--limit", type=int, help="the first requests of the workload only")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--json", type=Path, metavar="OUT")
    args = parser.parse_args()
    workload = read_workload(args.workload, args.limit)
    llm = LLM(args.model, dtype="float32")
    kinds: dict[str, Callable[[], dict[str, float]]] = {
        "offline": lambda: offline(llm, workload),
        "http": lambda: over_http(llm, args.workload, workload, args.concurrency),
    }
    turns: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for _ in range(args.runs):
        for kind, work in kinds.items():
            found = turn(llm, work)
            turns[kind].append(found)
            print(
                f"{kind:7} {found['tokens']} tokens, {found['tokens_per_second']:.1f} a second, "
                f"{found['cpu_seconds']:.1f} CPU s, {found['steps']} steps",
                flush=True,
            )
    speed = {k: median(t["tokens_per_second"] for t in turns[k]) for k in kinds}
    cpu = {k: median(t["cpu_seconds"] for t in turns[k]) for k in kinds}
    result = {
        "workload": workload.name,
        "concurrency": args.concurrency,
        "http_over_offline": speed["http"] / speed["offline"],
        "cpu_http_over_offline": cpu["http"] / cpu["offline"],
        "tokens_per_second": speed,
        "turns": turns,
    }
    print(f"over HTTP / offline: {result['http_over_offline']:.3f}")
    write(args.json, [result])


if __name__ == "__main__":
    main()
