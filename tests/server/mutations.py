"""Requests that are nearly right."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from tests.server.tiny_server import chat, completion

SEEDS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", completion(logprobs=2, echo=True, stop=["x"], n=1)),
    ("/v1/completions", completion([5, 6, 7], logit_bias={"5": 1}, best_of=1)),
    ("/v1/completions", completion([[5, 6], [7]], bad_words=["a"], allowed_token_ids=[5, 6])),
    ("/v1/completions", completion(use_beam_search=True, n=2, ignore_eos=False)),
    ("/v1/completions", completion(presence_penalty=0.5, repetition_penalty=1.1, min_p=0.1)),
    ("/v1/completions", completion(prompt_logprobs=1, seed=1, temperature=1.0, top_k=5)),
    ("/v1/chat/completions", chat(logprobs=True, top_logprobs=1, stream_options=None)),
    ("/v1/chat/completions", chat([{"type": "text", "text": "hi"}], cache_salt="a", priority=1)),
    ("/v1/chat/completions", chat(response_format={"type": "json_object"}, min_tokens=1)),
    ("/v1/chat/completions", chat(structured_outputs={"regex": "a+"}, max_completion_tokens=3)),
    ("/v1/chat/completions", chat(chat_template_kwargs={"a": 1}, tools=[], tool_choice="none")),
    ("/generate", completion(n=2, timeout=5.0, return_token_ids=True)),
    ("/tokenize", {"prompt": "the cat", "add_special_tokens": True}),
    ("/tokenize", {"messages": [{"role": "user", "content": "hi"}]}),
    ("/detokenize", {"tokens": [5, 6]}),
    ("/v1/embeddings", {"input": ["the cat", "sat"], "truncate_prompt_tokens": -1}),
    ("/v1/chat/completions", chat(continue_final_message=True, truncate_prompt_tokens=5)),
    (
        "/v1/responses",
        {
            "input": "the cat",
            "max_output_tokens": 3,
            "text": {"format": None},
            "tools": [],
            "truncation": "auto",
            "store": False,
        },
    ),
    (
        "/v1/responses",
        {
            "input": [
                {"role": "user", "content": "hi"},
                {"type": "function_call", "call_id": "a", "name": "b", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "a", "output": "c"},
            ],
            "instructions": "x",
            "max_output_tokens": 3,
            "metadata": {"a": "b"},
        },
    ),
]
ODD: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    0.5,
    -0.0,
    1e308,
    -1e308,
    5e-324,
    2**31,
    2**63,
    -(2**64),
    10**40,
    float("nan"),
    float("inf"),
    "",
    "a",
    "\x00",
    "\ud800",
    "🧑‍🚀",
    "a" * 3000,
    "x " * 20_000,
    [],
    {},
    [[]],
    [None],
    [True],
    [1.5],
    [-1],
    [2**40],
    ["a", 1],
    [[1], "a"],
    {"a": None},
    {"": ""},
    {"5": float("nan")},
    {"-1": 1},
    {"5.0": 1},
    list(range(300)),
    ["s"] * 300,
    [[5]] * 40,
    {str(token): 1 for token in range(300)},
    "{{ 7 * 7 }}",
    "<|im_end|>",
    "../../etc/passwd",
]
NAMES = ["n", "best_of", "temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "seed",
         "logit_bias", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs", "priority",
         "stream", "stream_options", "echo", "suffix", "user", "model", "guided_regex", "timeout",
         "guided_json", "response_format", "length_penalty", "early_stopping", "detokenize",
         "skip_special_tokens", "include_stop_str_in_output", "allowed_token_ids", "messages",
         "prompt", "bad_words", "cache_salt", "top_logprobs", "repetition_penalty",
         "truncate_prompt_tokens", "continue_final_message", "add_generation_prompt", "tools",
         "tool_choice", "input", "text", "instructions", "previous_response_id", "include",
         "reasoning", "metadata", "truncation", "max_output_tokens"]  # fmt: skip


def mutated(number: int) -> tuple[str, bytes]:
    """Path and body of the mutation of that number."""
    chance = random.Random(number)
    path, seed = chance.choice(SEEDS)
    body: Any = copy.deepcopy(seed)
    for _ in range(chance.choice((1, 1, 2, 3))):
        kind = chance.random()
        if kind < 0.45:
            body[chance.choice([*body])] = chance.choice(ODD)
        elif kind < 0.75:
            body[chance.choice(NAMES)] = chance.choice(ODD)
        elif kind < 0.85:
            body.pop(chance.choice([*body]), None)
        elif kind < 0.93:
            name = chance.choice([*body])
            for _ in range(chance.choice((3, 200, 2000))):
                body[name] = [body[name]] if chance.random() < 0.9 else {"a": body[name]}
                if chance.random() < 0.01:
                    break
        else:
            body[chance.choice([*body])] = chance.choice(ODD)
        body = body or {"a": 1}
    try:
        content = json.dumps(body).encode()
    except RecursionError:
        content = b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}"
    kind = chance.random()
    if kind < 0.05:
        content = content[: chance.randrange(len(content))]
    elif kind < 0.1:
        place = chance.randrange(len(content))
        content = content[:place] + bytes([chance.randrange(256)]) + content[place + 1 :]
    elif kind < 0.12:
        content = json.dumps(chance.choice(ODD)).encode()
    return path, content
