"""RequestLimits: bounds on everything a request may ask for."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class RequestLimits:
    """Upper bounds on what a client can send; each is an option of `paxkv serve`.

    What the engine bounds anyway (max_model_len, max_num_seqs, max_logprobs) is not repeated here.

    max_body_bytes: of a request's body.
    max_body_values: in a body: numbers and texts; a list, an object and each of its fields count
        as 10, since they take as long to read.
    max_held_bytes: of the bodies of all requests without an answer yet; beyond it the answer is
        503.
    max_connections: at once; more are closed.
    max_header_bytes: of a request's line and headers.
    max_header_seconds: until a request's headers are complete.
    max_body_seconds: until a request's body is complete.
    max_reader_stall_seconds: a reader that takes nothing of its stream for so long is let go.
    max_request_seconds: a request that takes longer ends with status 408; its own `timeout` may
        be shorter.
    max_grammar_seconds: to compile the form of a structured output.
    max_waiting_grammars: that wait to be compiled, one after the other; beyond it the answer is
        503.
    max_prompts: in one request.
    max_messages: in one conversation.
    max_template_values: in messages, tools or chat_template_kwargs, those within others too.
    max_token_ids: in `stop_token_ids` or `allowed_token_ids`.
    max_stop_strings: in `stop`.
    max_stop_characters: of each of them.
    max_bad_words: in `bad_words`.
    max_stored_bytes: of the answers of /v1/responses that are kept for later requests; beyond it
        the least recently used go.
    """

    max_body_bytes: int = 4 * 1024 * 1024
    max_body_values: int = 500_000
    max_held_bytes: int = 256 * 1024 * 1024
    max_connections: int = 4096
    max_header_bytes: int = 32 * 1024
    max_header_seconds: float = 10.0
    max_body_seconds: float = 30.0
    max_reader_stall_seconds: float = 60.0
    max_request_seconds: float = 3600.0
    max_grammar_seconds: float = 3.0
    max_waiting_grammars: int = 16
    max_prompts: int = 1024
    max_messages: int = 2048
    max_template_values: int = 100_000
    max_token_ids: int = 150_000
    max_stop_strings: int = 16
    max_stop_characters: int = 256
    max_bad_words: int = 256
    max_stored_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{field.name}={value!r} must be a number above 0")
