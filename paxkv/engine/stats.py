"""Figures of an engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineStats:
    """What `llm.stats()` returns.

    Attributes:
        num_blocks, free_blocks, used_blocks, cached_blocks, shared_blocks: pages of the pool;
            cached ones are those the prefix cache knows, shared ones stand in several tables.
        running, waiting: sequences.
        preemptions, cow_copies: since the start.
        prefix_cache_queries, prefix_cache_hits: prompt tokens of requests admitted for the first
            time, and how many of them came from the cache.
        compiled_programs: their names. compile_seconds: spent making them.
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
    preemptions: int
    cow_copies: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    compiled_programs: tuple[str, ...]
    compile_seconds: float
    num_steps: int
    tokens_per_step: tuple[int, ...]
    host_seconds_per_step: float
