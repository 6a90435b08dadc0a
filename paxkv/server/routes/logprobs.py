"""Log-probabilities in OpenAI's two formats, and prompt_logprobs in vLLM's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from paxkv.engine.request import Request
from paxkv.outputs import Logprob, TokenLogprobs
from paxkv.text.detokenizer import Detokenizer
from paxkv.text.tokenizer import Tokenizer

LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
LOWEST = -9999.0  # JSON has no -inf


def finite(logprob: float) -> float:
    return max(logprob, LOWEST)


def shown_token(token_id: int, entry: Logprob) -> str:
    return f"token_id:{token_id}" if entry.decoded_token is None else entry.decoded_token


class CompletionLogprobs:
    """Lists of /v1/completions, over an answer or a chunk of it.

    text_offset is where the text of a token begins in the choice's text: as long as what comes
    before it, decoded; all parts of a character have the offset of the character.
    """

    def __init__(self, tokenizer: Tokenizer | None, request: Request) -> None:
        self._tokenizer = tokenizer
        self._request = request
        self._offset = 0
        context = request.prompt_token_ids if request.detokenizer_context else ()
        self._detokenizer = self._new(request.sampling_params.skip_special_tokens, context)

    def _new(self, skip: bool, context: Sequence[int] = ()) -> Detokenizer | None:
        if self._tokenizer is None:
            return None
        backend = self._tokenizer.backend
        return Detokenizer(backend, skip_special_tokens=skip, context=context)

    def echo(self, text: str) -> dict[str, list[Any]]:
        """The lists for the prompt, which the choice's text begins with as `text`."""
        request = self._request
        ids = request.prompt_token_ids
        whole = self._tokenizer is not None and self._tokenizer.decode(ids, False) == text
        entries = request.prompt_logprobs or [None] * len(ids)
        lists = self._lists(ids, entries, self._new(skip=not whole))
        self._offset = len(text)
        return lists

    def take(self, token_ids: Sequence[int], entries: Iterable[TokenLogprobs]) -> dict[str, Any]:
        """The lists for further tokens of the answer."""
        return self._lists(token_ids, entries, self._detokenizer)

    def _lists(
        self,
        token_ids: Sequence[int],
        entries: Iterable[TokenLogprobs | None],
        detokenizer: Detokenizer | None,
    ) -> dict[str, list[Any]]:
        lists: dict[str, list[Any]] = {name: [] for name in LISTS}
        for token, entry in zip(token_ids, entries, strict=True):
            shown = self._alone(token) if entry is None else shown_token(token, entry[token])
            lists["tokens"].append(shown)
            lists["text_offset"].append(self._place(token, shown, detokenizer))
            if entry is None:  # of a prompt's first token
                lists["token_logprobs"].append(None)
                lists["top_logprobs"].append(None)
                continue
            lists["token_logprobs"].append(finite(entry[token].logprob))
            best: dict[str, float] = {}
            for other, alternative in sorted(entry.items(), key=lambda item: -item[1].logprob):
                best.setdefault(shown_token(other, alternative), finite(alternative.logprob))
            lists["top_logprobs"].append(best)
        return lists

    def _place(self, token: int, shown: str, detokenizer: Detokenizer | None) -> int:
        """Where the token's text begins; moves on to where it ends."""
        before = self._offset
        if detokenizer is None:
            return before
        piece = detokenizer.push(token)
        self._offset += len(piece)
        # Bytes before it that turned out to be no character come with it, as U+FFFD.
        return self._offset - len(shown) if shown and piece.endswith(shown) else before

    def _alone(self, token: int) -> str:
        if self._tokenizer is None:
            return f"token_id:{token}"
        return self._tokenizer.token_text(token)


def chat_logprobs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    entries: Iterable[TokenLogprobs],
    top: int,
    skip_special_tokens: bool,
) -> dict[str, Any]:
    """The object of /v1/chat/completions: `top` alternatives per token, best first."""

    def entry(token: int, found: Logprob) -> dict[str, Any]:
        silent = skip_special_tokens and token in tokenizer.special_ids
        return {
            "token": shown_token(token, found),
            "logprob": finite(found.logprob),
            "bytes": [] if silent else list(tokenizer.token_bytes(token)),
        }

    content = []
    for token, found in zip(token_ids, entries, strict=True):
        ranked = sorted(found.items(), key=lambda item: item[1].rank or 0)
        alternatives = [entry(*item) for item in ranked if (item[1].rank or 0) <= top]
        content.append({**entry(token, found[token]), "top_logprobs": alternatives})
    return {"content": content, "refusal": None}


def prompt_logprobs(entries: Iterable[TokenLogprobs | None]) -> list[Any]:
    """One object per prompt token, {token id: {logprob, rank, decoded_token}}."""
    return [
        entry
        and {
            str(token): {
                "logprob": finite(found.logprob),
                "rank": found.rank,
                "decoded_token": found.decoded_token,
            }
            for token, found in entry.items()
        }
        for entry in entries
    ]
