"""paxkv: a paged-KV inference engine for language models, native to JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paxkv.engine.embedding import PoolingParams
    from paxkv.llm import LLM
    from paxkv.outputs import CompletionOutput, RequestOutput
    from paxkv.sampling.sampling_params import BeamSearchParams, SamplingParams
    from paxkv.sampling.structured_outputs import StructuredOutputsParams

__all__ = [
    "LLM",
    "BeamSearchParams",
    "CompletionOutput",
    "PoolingParams",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
]

_HOMES = {
    "LLM": "paxkv.llm",
    "BeamSearchParams": "paxkv.sampling.sampling_params",
    "CompletionOutput": "paxkv.outputs",
    "PoolingParams": "paxkv.engine.embedding",
    "RequestOutput": "paxkv.outputs",
    "SamplingParams": "paxkv.sampling.sampling_params",
    "StructuredOutputsParams": "paxkv.sampling.structured_outputs",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import paxkv.memory` needs no JAX."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
