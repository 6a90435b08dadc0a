"""The tokens of a step that decoding leaves to prompts, and how prompts share them."""

from __future__ import annotations

from paxkv.engine.policy import Policy


class PromptBudget:
    """Equal shares for up to `max_num_partial_prefills` prompts that a step does not complete.

    A prompt that is done within its share leaves the rest of it to others, so short prompts are
    not stalled by a long one before them. Of the long ones, `max_long_partial_prefills` have a
    share; one more gets a single token, which keeps its place in line: nobody is passed over. What
    is left in the end goes to the first in line.

    left: tokens.
    """

    def __init__(self, policy: Policy, tokens: int) -> None:
        self.left = tokens
        self._policy = policy
        self._shares = policy.partial_prefills
        self._long_shares = policy.long_partial_prefills

    @property
    def spent(self) -> bool:
        """Nothing is left for another prompt."""
        return not self.left or not self._shares

    def share(self, remaining: int) -> int:
        """Tokens that a prompt with `remaining` to compute may have; 0 if spent."""
        if self.spent:
            return 0
        if self._is_long(remaining) and not self._long_shares:
            return 1
        return -(-self.left // self._shares)

    def take(self, remaining: int, count: int) -> None:
        """`count` tokens go to a prompt that had `remaining`."""
        parked = self._is_long(remaining) and not self._long_shares
        self.left -= count
        if count < remaining and not parked:
            self._shares -= 1
            self._long_shares -= self._is_long(remaining)

    def _is_long(self, remaining: int) -> bool:
        return 0 < self._policy.long_prefill_tokens < remaining
