"""How the scheduler chooses, beside first come, first served."""

from __future__ import annotations

from dataclasses import dataclass

from paxkv.engine.config import EngineConfig

LONG_PREFILL_SHARE = 0.04  # of max_model_len, as vLLM has it


@dataclass(frozen=True)
class Policy:
    """The scheduling options of an engine, every default replaced; see `EngineConfig`.

    delay_factor: prompts wait so many times the last prompt's latency. aging_steps: steps of
    waiting that are worth one level of priority, None for never. length_aware: shorter ones first
    among `max_num_seqs` arrivals in a row. partial_prefills, long_partial_prefills: prompts that
    share a step's budget; those with more than long_prefill_tokens left are long, 0 for none.
    priority_preemption: a waiting request may take the place of running ones of lower priority.
    """

    delay_factor: float = 0.0
    aging_steps: int | None = None
    length_aware: bool = False
    partial_prefills: int = 1
    long_partial_prefills: int = 1
    long_prefill_tokens: int = 0
    priority_preemption: bool = False

    @classmethod
    def of(cls, options: EngineConfig, max_model_len: int) -> Policy:
        """Raises ValueError if the options contradict each other or the model's length."""
        partial, long = options.max_num_partial_prefills, options.max_long_partial_prefills
        threshold = options.long_prefill_token_threshold
        if partial > 1 and not options.enable_chunked_prefill:
            raise ValueError(
                f"max_num_partial_prefills={partial} needs enable_chunked_prefill=True: prompts "
                "share a step in chunks"
            )
        if long > partial:
            raise ValueError(
                f"max_long_partial_prefills={long} must be at most "
                f"max_num_partial_prefills={partial}"
            )
        if threshold > max_model_len:
            raise ValueError(
                f"long_prefill_token_threshold={threshold} must be at most "
                f"max_model_len={max_model_len}"
            )
        if options.priority_preemption and options.allocation == "contiguous":
            raise ValueError(
                "priority_preemption=True needs allocation='paged': contiguous reservations are "
                "kept to the end"
            )
        return cls(
            delay_factor=float(options.scheduler_delay_factor),
            aging_steps=options.priority_aging_steps,
            length_aware=options.length_aware,
            partial_prefills=partial,
            long_partial_prefills=long,
            long_prefill_tokens=threshold
            or (int(max_model_len * LONG_PREFILL_SHARE) if partial > 1 else 0),
            priority_preemption=options.priority_preemption,
        )
