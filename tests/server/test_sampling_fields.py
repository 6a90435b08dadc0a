"""Every field of SamplingParams is a field of the requests that generate."""

from __future__ import annotations

from typing import Any

import pytest

from paxkv.engine.request import Request
from paxkv.sampling.sampling_params import SamplingParams
from paxkv.server.schemas import SAMPLING_FIELDS
from tests.server.tiny_server import TinyServer, chat, completion

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BEAMS = {"use_beam_search": True, "temperature": 0, "n": 2}
# A value that is not the default, and what it needs besides.
FIELDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "n": (2, {}),
    "best_of": (3, {}),
    "presence_penalty": (0.5, {}),
    "frequency_penalty": (-0.5, {}),
    "repetition_penalty": (1.3, {}),
    "temperature": (0.7, {}),
    "top_p": (0.8, {}),
    "top_k": (7, {}),
    "min_p": (0.1, {}),
    "top_n_sigma": (1.5, {}),
    "seed": (5, {}),
    "stop": (["zz"], {}),
    "stop_token_ids": ([9], {}),
    "bad_words": (["the"], {}),
    "include_stop_str_in_output": (True, {}),
    "ignore_eos": (True, {}),
    "max_tokens": (3, {}),
    "min_tokens": (2, {}),
    "logprobs": (2, {}),
    "prompt_logprobs": (1, {}),
    "detokenize": (False, {}),
    "skip_special_tokens": (False, {}),
    "logit_bias": ({"5": 2.0}, {}),
    "allowed_token_ids": ([5, 6], {}),
    "priority": (3, {}),
    "enable_prefix_caching": (False, {}),
    "use_beam_search": (True, BEAMS),
    "length_penalty": (0.5, BEAMS),
    "early_stopping": (True, BEAMS),
    "structured_outputs": ({"regex": "a+"}, {}),
}
PROMPT = {
    "/v1/completions": {"prompt": "the cat"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "the cat"}]},
    "/generate": {"prompt": "the cat"},
}


@pytest.mark.parametrize("path", PROMPT)
def test_every_field_reaches_the_engine(
    server: TinyServer, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    assert set(FIELDS) == set(SAMPLING_FIELDS)
    input_processor = server.model.input_processor
    own = input_processor.request
    seen: list[SamplingParams] = []

    def request(prompt: Any, params: SamplingParams, **kwargs: Any) -> Request:
        seen.append(params)
        return own(prompt, params, **kwargs)

    monkeypatch.setattr(input_processor, "request", request)
    for name, (value, context) in FIELDS.items():
        fields = {**context, name: value}
        if path.endswith("chat/completions") and name == "logprobs":
            fields = {"logprobs": True, "top_logprobs": value}
        reply = server.post(path, {**PROMPT[path], "max_tokens": 4, **fields})
        assert reply.status == 200, (name, reply.content)
        found = getattr(seen.pop(), name)
        if name == "logit_bias":
            value = {int(token): bias for token, bias in value.items()}
        assert found == getattr(SamplingParams(**{"max_tokens": 4, **context, name: value}), name)
        assert found != getattr(SamplingParams(), name)


def test_max_completion_tokens_is_named_as_it_was_sent(server: TinyServer) -> None:
    """Kind: an alias whose errors speak of the other name."""
    for path, body in ((COMPLETIONS, completion()), (CHAT, chat())):
        for wrong in (0, -1):
            error = server.post(path, {**body, "max_completion_tokens": wrong}).error
            assert error["param"] == "max_completion_tokens", error
            assert error["message"].startswith("max_completion_tokens must be"), error


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_no_tokens_with_echo_score_the_prompt(server: TinyServer, name: str) -> None:
    """max_completion_tokens counts where both are given."""
    body = completion(echo=True, **{"max_tokens": 5, name: 0})
    (choice,) = server.post(COMPLETIONS, body).json()["choices"]
    assert choice["text"] == body["prompt"]
    both = completion(echo=True, max_tokens=0, max_completion_tokens=3)
    assert server.post(COMPLETIONS, both).json()["usage"]["completion_tokens"] == 3
