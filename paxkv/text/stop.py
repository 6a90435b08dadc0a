"""Stop rules: when a sequence ends, and which text may be shown before that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple

from paxkv.sampling.sampling_params import SamplingParams
from paxkv.text.detokenizer import Detokenizer


class Finish(NamedTuple):
    """finish_reason "stop" or "length"; stop_reason the string or id met, None for an EOS."""

    finish_reason: str
    stop_reason: int | str | None = None


@dataclass(frozen=True)
class StopString:
    """A stop string and its failure table (Knuth, Morris, Pratt 1977)."""

    text: str
    fallback: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        text = self.text
        fallback = [0] * (len(text) + 1)
        matched = 0
        for end in range(1, len(text)):
            while matched and text[end] != text[matched]:
                matched = fallback[matched]
            if text[end] == text[matched]:
                matched += 1
            fallback[end + 1] = matched
        object.__setattr__(self, "fallback", tuple(fallback))

    def advance(self, matched: int, piece: str, ends: bool) -> tuple[int, int]:
        """Read `piece` with `matched` characters of the string already met before it.

        Returns (matched, end): end is the length of `piece` up to and including the first
        completed match, or -1. With ends=False matches are passed over.
        """
        text, fallback = self.text, self.fallback
        if not matched and text[0] not in piece:
            return 0, -1
        last = len(text)
        for position, character in enumerate(piece):
            while matched and character != text[matched]:
                matched = fallback[matched]
            if character == text[matched]:
                matched += 1
            if matched == last:
                if ends:
                    return matched, position + 1
                matched = fallback[matched]
        return matched, -1


@dataclass(frozen=True)
class StopRules:
    """Stop rules of one request; shared by its children.

    end_ids maps a token id to its stop_reason: None for EOS, the id for stop_token_ids, the
    string for a stop string that is a special token's text.
    max_tokens: None never ends by length here. min_tokens: nothing ends a sequence earlier.
    """

    end_ids: Mapping[int, int | str | None] = field(default_factory=dict)
    strings: tuple[StopString, ...] = ()
    min_tokens: int = 0
    max_tokens: int | None = None
    include_stop_str_in_output: bool = False

    @classmethod
    def build(
        cls,
        *,
        eos_token_ids: Iterable[int] = (),
        stop_token_ids: Iterable[int] = (),
        stop: Sequence[str] = (),
        special_tokens: Mapping[str, int] | None = None,
        ignore_eos: bool = False,
        min_tokens: int = 0,
        max_tokens: int | None = None,
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
    ) -> StopRules:
        """Rules from a request's fields.

        eos_token_ids: all of the model's, tokenizer's and generation config's together.
        special_tokens: text to id, of the tokenizer's special tokens. A stop string that merely
        contains one could never be met while special tokens are skipped: a ValueError.
        """
        special_tokens = special_tokens or {}
        end_ids: dict[int, int | str | None] = {token_id: token_id for token_id in stop_token_ids}
        if not ignore_eos:
            end_ids.update(dict.fromkeys(eos_token_ids, None))
        for text in stop:
            if text in special_tokens:
                end_ids[special_tokens[text]] = text
            elif skip_special_tokens:
                inside = [special for special in special_tokens if special in text]
                if inside:
                    raise ValueError(
                        f"stop must not contain a special token's text ({inside[0]!r}) beside "
                        f"other text while skip_special_tokens is True, got {text!r}"
                    )
        return cls(
            end_ids=end_ids,
            strings=tuple(StopString(text) for text in dict.fromkeys(stop)),
            min_tokens=min_tokens,
            max_tokens=max_tokens,
            include_stop_str_in_output=include_stop_str_in_output,
        )

    @classmethod
    def for_request(
        cls,
        params: SamplingParams,
        *,
        eos_token_ids: Iterable[int],
        special_tokens: Mapping[str, int] | None,
        max_tokens: int,
    ) -> StopRules:
        """The rules of `params`; max_tokens is the engine's, with the room left applied."""
        return cls.build(
            eos_token_ids=eos_token_ids,
            stop_token_ids=params.stop_token_ids or (),
            stop=tuple(params.stop or ()),
            special_tokens=special_tokens,
            ignore_eos=params.ignore_eos,
            min_tokens=params.min_tokens,
            max_tokens=max_tokens,
            include_stop_str_in_output=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
        )


class SequenceText:
    """Tokens of one sequence in, its text and the decision to stop out.

    The engine's commit calls `push`. It decodes at once only where stop strings make the decision
    depend on the text; otherwise text is decoded on demand (`take_delta`, `text`), which may be off
    the critical path but must not overlap with `push`. After a decision the sequence is closed and
    push is an error.
    """

    __slots__ = (
        "_count",
        "_detokenizer",
        "_finish",
        "_held",
        "_matched",
        "_released",
        "_rules",
        "_taken",
        "_waiting",
    )

    def __init__(self, rules: StopRules, detokenizer: Detokenizer | None = None) -> None:
        if rules.strings and detokenizer is None:
            raise ValueError("stop needs a tokenizer, got stop strings without one")
        self._rules = rules
        self._detokenizer = detokenizer
        self._count = 0
        self._finish: Finish | None = None
        self._waiting: list[int] = []
        self._released: list[str] = []
        self._taken = 0
        self._held = ""
        self._matched = [0] * len(rules.strings)

    def followed_by(self, token_id: int) -> SequenceText:
        """Return a copy that has taken one more token; it may have ended."""
        other = copy(self)
        if self._detokenizer is not None:
            other._detokenizer = self._detokenizer.copy()
        other._waiting, other._released = list(self._waiting), list(self._released)
        other._matched = list(self._matched)
        other.push(token_id)
        return other

    @property
    def finish(self) -> Finish | None:
        return self._finish

    @property
    def num_tokens(self) -> int:
        return self._count

    def push(self, token_id: int) -> Finish | None:
        """Take the next token; return the decision if it ends the sequence."""
        if self._finish is not None:
            raise RuntimeError(f"token {token_id} pushed after the sequence ended")
        rules = self._rules
        count = self._count = self._count + 1
        if token_id in rules.end_ids and count >= rules.min_tokens:
            return self._end_on(token_id)
        if self._detokenizer is not None:
            self._waiting.append(token_id)
            if rules.strings:
                self._finish = self._decode_waiting()
                if self._finish is not None:
                    return self._finish
        if count == rules.max_tokens:
            return self.close(Finish("length"))
        return None

    def close(self, finish: Finish) -> Finish:
        """End for an outside reason (length, abort, error). The bytes of an unfinished character
        are flushed first, and a stop string they complete wins; so does an earlier decision."""
        if self._finish is not None:
            return self._finish
        if not self._rules.strings:
            self._finish = finish
            return finish
        met = self._decode_waiting() or self._flush()
        if met is None:
            met = finish
            self._release_held()
        self._finish = met
        return met

    def _end_on(self, token_id: int) -> Finish:
        rules = self._rules
        finish = Finish("stop", rules.end_ids[token_id])
        if not rules.include_stop_str_in_output:
            return self.close(finish)
        if isinstance(finish.stop_reason, str):
            ended = self.close(finish)
            if ended is finish:
                self._released.append(finish.stop_reason)
            return ended
        self._waiting.append(token_id)
        return self.close(finish)

    def _decode_waiting(self) -> Finish | None:
        """Decode the waiting tokens; the decision if they complete a stop string."""
        waiting, self._waiting = self._waiting, []
        if self._detokenizer is None:
            return None
        for token_id in waiting:
            piece = self._detokenizer.push(token_id)
            met = self._add(piece) if piece else None
            if met is not None:
                return met
        return None

    def _flush(self) -> Finish | None:
        piece = self._detokenizer.flush() if self._detokenizer is not None else ""
        return self._add(piece) if piece else None

    def _add(self, piece: str) -> Finish | None:
        strings = self._rules.strings
        if not strings:
            self._released.append(piece)
            return None
        ends = self._count >= self._rules.min_tokens
        first: tuple[int, int, str] | None = None
        for index, string in enumerate(strings):
            self._matched[index], end = string.advance(self._matched[index], piece, ends)
            if end >= 0:
                met = (end, -len(string.text), string.text)
                first = met if first is None else min(first, met)
        if first is not None:
            return self._cut(piece, *first)
        if self._rules.include_stop_str_in_output:
            self._released.append(piece)
            return None
        whole = self._held + piece
        final = len(whole) - max(self._matched)
        self._held = whole[final:]
        if final:
            self._released.append(whole[:final])
        return None

    def _cut(self, piece: str, end: int, minus_length: int, text: str) -> Finish:
        """Stop string `text` ends `end` characters into `piece`."""
        whole = self._held + piece
        end += len(self._held)
        self._held = ""
        if not self._rules.include_stop_str_in_output:
            end += minus_length
        if end:
            self._released.append(whole[:end])
        return Finish("stop", text)

    def _release_held(self) -> None:
        if self._held:
            self._released.append(self._held)
            self._held = ""

    def _catch_up(self) -> None:
        """Decode the text that `push` deferred (only without stop strings)."""
        if self._waiting:
            self._decode_waiting()
        if self._finish is not None and not self._rules.strings:
            self._flush()

    def take_delta(self) -> str:
        """Text that became final since the last call; held-back text is not in it."""
        self._catch_up()
        delta = "".join(self._released[self._taken :])
        self._taken = len(self._released)
        return delta

    @property
    def text(self) -> str:
        """All text that is final so far; the whole text once the sequence has ended."""
        self._catch_up()
        return "".join(self._released)
