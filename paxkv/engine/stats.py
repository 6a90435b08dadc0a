"""Engine statistics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineStats:
    """What `llm.stats()` returns.

    Attributes:
        num_blocks, free_blocks, used_blocks, cached_blocks, shared_blocks: pages of the pool;
            cached ones are those the prefix cache knows, shared ones stand in several tables.
        running, waiting, swapped: sequences; those in host memory are not among the waiting.
        num_cpu_blocks, cpu_free_blocks, cpu_used_blocks: pages in host memory.
        swap_bytes_out, swap_bytes_in: moved to host memory and back since the start.
        preemptions, preemptions_swapped, cow_copies: since the start; the second is how many of
            the first went to host memory. The beams of a request are preempted as one.
        prefix_cache_queries, prefix_cache_hits: prompt tokens of requests started for the first
            time, and how many of them came from the cache.
        attention: the back end of the attention kernels, and why it was chosen.
        compiled_programs: their names. compile_seconds: time spent compiling them.
        num_steps: steps run. tokens_per_step: tokens computed in each of the last steps.
        host_seconds_per_step: mean of scheduling, planning and committing.
    """

    num_blocks: int
    free_blocks: int
    used_blocks: int
    cached_blocks: int
    shared_blocks: int
    running: int
    waiting: int
    swapped: int
    num_cpu_blocks: int
    cpu_free_blocks: int
    cpu_used_blocks: int
    swap_bytes_out: int
    swap_bytes_in: int
    preemptions: int
    preemptions_swapped: int
    cow_copies: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    attention: str
    compiled_programs: tuple[str, ...]
    compile_seconds: float
    num_steps: int
    tokens_per_step: tuple[int, ...]
    host_seconds_per_step: float
