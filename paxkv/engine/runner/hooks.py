"""Public test hooks: force tokens, poison logits, fail steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Hooks:
    """Test hooks; set any on `llm.engine.runner.hooks`. All are None in production.

    logits: `(request_id, child, output position) -> token id to force, nan to poison, or None`.
    before_launch: called with the number of steps so far before anything reaches the device.
    inside_step: the same, after some of the step's programs have been launched and pages donated.
    """

    logits: Callable[[str, int, int], int | float | None] | None = None
    before_launch: Callable[[int], None] | None = None
    inside_step: Callable[[int], None] | None = None
