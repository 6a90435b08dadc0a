"""Whether a preempted sequence goes to host memory or is computed again."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paxkv.engine.config import PreemptionMode
from paxkv.memory import BlockManager

if TYPE_CHECKING:
    from paxkv.engine.runner import Runner

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Preemption:
    """How to choose.

    With "auto" sequences are swapped if carrying their pages out and in takes less time than
    computing their tokens again. Pages that others keep on the device count for neither. Both
    speeds are measured once, when the engine starts: a chunk of pages carried there and back, and
    the smallest step of prompt tokens. That step has no context to attend to, so the measure
    favours recomputing somewhat for long sequences.

    mode: see `EngineConfig`. seconds_per_page: one way. seconds_per_token: in a prompt.
    """

    mode: PreemptionMode = "recompute"
    seconds_per_page: float = 0.0
    seconds_per_token: float = 0.0

    @classmethod
    def measured(cls, mode: PreemptionMode, runner: Runner) -> Preemption:
        if mode != "auto":
            return cls(mode)
        found = cls(mode, runner.seconds_per_page(), runner.seconds_per_token())
        logger.info(
            "preemption_mode=auto: %.3g s to carry a page, %.3g s to compute a token",
            found.seconds_per_page,
            found.seconds_per_token,
        )
        return found

    def swaps(self, memory: BlockManager, rows: list[int]) -> bool:
        """Whether the sequences in `rows` should be swapped together, if host memory has room."""
        if self.mode != "auto":
            return self.mode == "swap"
        pages, tokens = memory.swap.cost(rows)
        return pages * self.seconds_per_page < tokens * self.seconds_per_token
