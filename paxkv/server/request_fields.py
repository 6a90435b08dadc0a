"""Fields of OpenAI's and vLLM's requests that this server lacks: refused by name, or accepted
and ignored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_NOTHING: tuple[Any, ...] = (False, "", [], {})


@dataclass(frozen=True)
class Refused:
    """A field that would change the answer, or what it holds.

    harmless: values with which it would not, besides null.
    """

    reason: str
    harmless: tuple[Any, ...] = _NOTHING


REFUSED = {
    "suffix": Refused("text can only be continued, not filled in"),
    "prompt_embeds": Refused("prompts are text or token ids"),
    "add_special_tokens": Refused("send token ids for a prompt without them", (True,)),
    "logits_processors": Refused("code from requests is not run"),
    "return_tokens_as_token_ids": Refused("tokens are shown as text; see return_token_ids"),
    "return_prompt_text": Refused("see return_token_ids, and /detokenize"),
    "logprob_token_ids": Refused("logprobs are of the likeliest tokens"),
    "truncation_side": Refused("truncate_prompt_tokens keeps a prompt's end", ("left",)),
    "guided_whitespace_pattern": Refused("white space follows the grammar"),
    "guided_decoding_backend": Refused("there is one"),
    "structural_tag": Refused("forms are those of structured_outputs"),
    "watermarking": Refused("nothing is hidden in answers"),
    "repetition_detection": Refused("see repetition_penalty"),
    "thinking_token_budget": Refused("thoughts are not bounded by themselves", (-1,)),
    "include_reasoning": Refused("thoughts are part of the content", (True,)),
    "vllm_xargs": Refused("there are no extensions that read it"),
    "functions": Refused("it is OpenAI's old form of tools"),
    "function_call": Refused("it is OpenAI's old form of tool_choice", ("none", "auto")),
    "tools": Refused("calling tools is for chat"),
    "tool_choice": Refused("calling tools is for chat", ("none", "auto")),
    "audio": Refused("only text is supported"),
    "modalities": Refused("only text is supported", ([], ["text"])),
    "moderation": Refused("nothing is moderated"),
    "verbosity": Refused("ask for it in a message", ("medium",)),
    "web_search_options": Refused("searching the web is not supported"),
    "documents": Refused("put documents into the messages"),
    "chat_template": Refused("only the model's own chat template, or the server's, is used"),
}

# Why each cannot change the answer.
IGNORED = {
    "user": "names the caller",
    "safety_identifier": "names the caller",
    "metadata": "is for stored answers",
    "store": "nothing is stored",
    "service_tier": "there is one",
    "prediction": "could only make the answer faster",
    "prompt_cache_key": "the prefix cache needs none; `cache_salt` separates callers",
    "prompt_cache_options": "see `enable_prefix_caching`",
    "prompt_cache_retention": "pages are kept while there is room",
    "parallel_tool_calls": "calling tools is for chat",
    "request_id": "the server chooses ids",
    "session_id": "the prefix cache needs none",
    "spaces_between_special_tokens": "of tokenizers that paxkv does not use",
    "kv_transfer_params": "there is one engine",
    "ec_transfer_params": "there is one engine",
    "media_io_kwargs": "only text is supported",
    "mm_processor_kwargs": "only text is supported",
    "return_mm_kwargs": "of vLLM's render routes",
    "return_token_offsets": "of vLLM's render routes",
    "routed_experts_prompt_start": "routing is not told",
    "stream_interval": "a chunk holds what a step brought",
    "include_obfuscation": "chunks are not padded",
}
