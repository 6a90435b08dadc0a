"""Engine options, and the same with every default resolved."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from os import PathLike
from typing import Any, Literal, get_args

from paxkv.models.config import ModelConfig
from paxkv.sampling.sampling_params import MAX_BEAMS
from paxkv.validation import shown

Dtype = Literal["auto", "float32", "float", "bfloat16", "float16", "half"]
PageDtype = Literal[Dtype, "int8", "fp8", "fp8_e4m3", "fp8_e5m2"]
PreemptionMode = Literal["recompute", "swap", "auto"]
ATTENTION_BACKENDS = ("auto", "xla", "triton", "mosaic")
LONG_PREFILL_SHARE = 0.04  # of max_model_len, as vLLM has it
DTYPES = {
    "float": "float32",
    "half": "float16",
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Options of an engine, under vLLM's names. Raises ValueError naming a wrong value.

    dtype: of weights and activations; "auto" is float32 on the CPU and elsewhere the type in which
        most of the weights are stored, bfloat16 for float32 and for quantized GGUF files.
    kv_cache_dtype: of the pages; "auto" is the model's. "int8" and "fp8" (which is "fp8_e4m3") take
        one byte, "fp8_e5m2" too: quantized as they are written, a factor per token and key head.
    max_model_len: most tokens of one sequence, prompt and output; by default the model's own limit.
    block_size: tokens per page, 1 to 256.
    allocation: "paged", or "contiguous": every sequence reserves the pages of max_model_len when it
        starts, and shares none (no prefix cache, n = 1), to measure what paging saves.
    num_gpu_blocks_override: usable pages, instead of measuring memory.
    kv_cache_memory_bytes: bytes for all pages (on the CPU 1 GiB by default).
    gpu_memory_utilization: share of the device, for weights, activations and pages.
    swap_space: GiB of host memory for sequences that are preempted; 0 for none.
    num_cpu_blocks_override: blocks of host memory, instead of swap_space.
    preemption_mode: "swap" moves a preempted sequence to host memory while there is room,
        "recompute" computes it again later, "auto" takes what costs less time.
    max_num_seqs: sequences in one step; by default 64 on the CPU and 256 elsewhere.
    max_num_batched_tokens: tokens in one step; by default 512 on the CPU and 2048 elsewhere.
    scheduler_delay_factor: before more prompts are started, wait until the oldest has waited so
        many times as long as the last step with a prompt took.
    max_num_partial_prefills: prompts that share a step, so that a long one does not stall short
        ones behind it. max_long_partial_prefills: how many of them may be long.
    long_prefill_token_threshold: prompts with more tokens to compute are long; 0 for 4 % of
        max_model_len. Of effect where prompts share a step.
    priority_aging_steps: a waiting request's priority rises by one every so many steps; by
        default never.
    priority_preemption: a waiting request preempts running ones of strictly lower priority, the
        lowest first, if that gives it the slots or pages it lacks; the same one not again before
        it has sampled another token. Off, it waits until others end.
    length_aware: start requests that can only be short (prompt and max_tokens) first, among
        max_num_seqs arrivals in a row.
    enable_chunked_prefill: split prompts over steps; without it a prompt is computed whole.
    enable_prefix_caching: keep full blocks of finished requests for prompts that start the same.
    attention_backend: "auto" takes the first back end of `pallas_kernels` that covers the model on
        this device; "xla", "triton" or "mosaic" insists. A kernel of your own is
        "path/file.py:function", or a function in Python (docs/kernels.md).
    max_logprobs: most alternatives that logprobs and prompt_logprobs may ask for; -1 for all.
    max_beam_width: most beams of one request.
    seed: base of requests without a seed of their own.
    enforce_eager: no compilation at start-up; the first use of a shape compiles it.
    deterministic: one bucket per program, so that results are bit-identical whatever else runs;
        on the GPU kernels as long as a prompt is cut into the same steps.
    layers_per_program: decoder layers compiled as one program; by default 6 on the CPU, which
        compile faster than all of them, but for the step of a lone sequence, and all elsewhere.
    compilation_cache_dir: JAX's persistent compilation cache; by default under the user's cache
        directory, "" switches it off.
    revision: of a hub id.
    """

    dtype: Dtype = "auto"
    kv_cache_dtype: PageDtype = "auto"
    max_model_len: int | None = None
    block_size: int = 16
    allocation: Literal["paged", "contiguous"] = "paged"
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    swap_space: float = 0.0
    num_cpu_blocks_override: int | None = None
    preemption_mode: PreemptionMode = "auto"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    scheduler_delay_factor: float = 0.0
    max_num_partial_prefills: int = 1
    max_long_partial_prefills: int = 1
    long_prefill_token_threshold: int = 0
    priority_aging_steps: int | None = None
    priority_preemption: bool = False
    length_aware: bool = False
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    attention_backend: str | Callable[..., Any] = "auto"
    max_logprobs: int = 20
    max_beam_width: int = 32
    seed: int = 0
    enforce_eager: bool = False
    deterministic: bool = False
    layers_per_program: int | None = None
    compilation_cache_dir: str | PathLike[str] | None = None
    revision: str | None = None

    def __post_init__(self) -> None:
        for name, low, high in (
            ("max_model_len", 2, None),
            ("block_size", 1, 256),
            ("num_gpu_blocks_override", 1, None),
            ("kv_cache_memory_bytes", 1, None),
            ("num_cpu_blocks_override", 0, None),
            ("max_num_seqs", 1, None),
            ("max_num_batched_tokens", 1, None),
            ("max_num_partial_prefills", 1, None),
            ("max_long_partial_prefills", 1, None),
            ("long_prefill_token_threshold", 0, None),
            ("priority_aging_steps", 1, None),
            ("max_logprobs", -1, None),
            ("max_beam_width", 1, MAX_BEAMS),
            ("layers_per_program", 1, None),
        ):
            value = getattr(self, name)
            if value is not None or type(self).__dataclass_fields__[name].default is not None:
                object.__setattr__(self, name, _integer(name, value, low, high))
        share = self.gpu_memory_utilization
        if isinstance(share, bool) or not isinstance(share, Real) or not 0 < share <= 1:
            raise ValueError(
                f"gpu_memory_utilization={share!r} must be a number above 0 and at most 1"
            )
        space = self.swap_space
        if isinstance(space, bool) or not isinstance(space, Real) or not 0 <= space < 1e9:
            raise ValueError(f"swap_space={space!r} must be a number of GiB, 0 or more")
        delay = self.scheduler_delay_factor
        if isinstance(delay, bool) or not isinstance(delay, Real) or not 0 <= delay < 1e9:
            raise ValueError(f"scheduler_delay_factor={delay!r} must be a number of at least 0")
        for name in ("gpu_memory_utilization", "swap_space", "scheduler_delay_factor"):
            object.__setattr__(self, name, float(getattr(self, name)))
        if isinstance(self.seed, bool) or not isinstance(self.seed, Integral):
            raise ValueError(f"seed={self.seed!r} must be an integer")
        object.__setattr__(self, "seed", int(self.seed))
        for name, choices in (
            ("dtype", get_args(Dtype)),
            ("kv_cache_dtype", get_args(PageDtype)),
            ("preemption_mode", get_args(PreemptionMode)),
        ):
            if getattr(self, name) not in choices:
                allowed = ", ".join(choices)
                raise ValueError(f"{name}={getattr(self, name)!r} must be one of {allowed}")
        backend = self.attention_backend
        is_kernel = callable(backend) or (isinstance(backend, str) and ".py:" in backend)
        if backend not in ATTENTION_BACKENDS and not is_kernel:
            raise ValueError(
                f"attention_backend={backend!r} must be one of {', '.join(ATTENTION_BACKENDS)}, "
                "path/file.py:function or a function"
            )
        if self.allocation not in ("paged", "contiguous"):
            raise ValueError(f"allocation={self.allocation!r} must be one of paged, contiguous")
        for name in (
            "priority_preemption",
            "length_aware",
            "enable_chunked_prefill",
            "enable_prefix_caching",
            "enforce_eager",
            "deterministic",
        ):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r} must be True or False")
        directory = self.compilation_cache_dir
        if directory is not None and not isinstance(directory, str | PathLike):
            raise ValueError(f'compilation_cache_dir={directory!r} must be a path, "" or None')
        if self.revision is not None and not isinstance(self.revision, str):
            raise ValueError(f"revision={self.revision!r} must be a string or None")

    @classmethod
    def from_args(cls, args: Mapping[str, Any]) -> EngineConfig:
        """The options in `args`. Raises ValueError for a name that is none."""
        known = sorted(cls.__dataclass_fields__)
        for name in sorted(args):
            if name not in known:
                raise ValueError(f"unknown option {name!r}; EngineConfig has: {', '.join(known)}")
        return cls(**args)

    def resolve(self, model_config: ModelConfig) -> ResolvedConfig:
        """Replace every default, by the model's limits and JAX's default device.

        Raises ValueError if options contradict each other or the model.
        """
        import jax

        on_cpu = jax.default_backend() == "cpu"
        longest = model_config.derived_max_len
        max_model_len = longest if self.max_model_len is None else self.max_model_len
        if max_model_len > longest:
            raise ValueError(
                f"max_model_len={max_model_len} must be at most {longest}, the model's own limit"
            )
        batched = self.max_num_batched_tokens
        if batched is None:
            batched = max(512 if on_cpu else 2048, self.max_num_seqs or 1)
            if not self.enable_chunked_prefill:
                batched = max(batched, max_model_len)
        vocab_size, paged = model_config.vocab_size, self.allocation == "paged"
        most = vocab_size if self.max_logprobs == -1 else min(self.max_logprobs, vocab_size)
        long = self.long_prefill_token_threshold
        if not long and self.max_num_partial_prefills > 1:
            long = int(max_model_len * LONG_PREFILL_SHARE)
        resolved = {
            "max_model_len": max_model_len,
            "max_num_batched_tokens": batched,
            "max_num_seqs": self.max_num_seqs or min(64 if on_cpu else 256, batched),
            "max_logprobs": most,
            "long_prefill_token_threshold": long,
            "enable_prefix_caching": self.enable_prefix_caching and paged,
            "num_gpu_blocks": self.num_gpu_blocks_override or 1,
        }
        return ResolvedConfig(**{**vars(self), **resolved})


@dataclass(frozen=True, kw_only=True)
class ResolvedConfig(EngineConfig):
    """An `EngineConfig` with every default replaced; engine, scheduler and kernels read it.

    Made by `EngineConfig.resolve`. Fields keep their names; those below differ in that they are
    always a number.

    num_gpu_blocks: usable pages; 1 until the device's memory has been measured.
    long_prefill_token_threshold: 0 where no prompt counts as long.
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_gpu_blocks: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        batched, longest = self.max_num_batched_tokens, self.max_model_len
        if not self.enable_chunked_prefill and batched < longest:
            raise ValueError(
                f"max_num_batched_tokens={batched} must be at least max_model_len={longest} when "
                "enable_chunked_prefill is False: a longer prompt could never run"
            )
        if batched < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens={batched} must be at least "
                f"max_num_seqs={self.max_num_seqs}: every running sequence advances in every step"
            )
        partial, long = self.max_num_partial_prefills, self.max_long_partial_prefills
        if partial > 1 and not self.enable_chunked_prefill:
            raise ValueError(
                f"max_num_partial_prefills={partial} needs enable_chunked_prefill=True: prompts "
                "share a step in chunks"
            )
        if long > partial:
            raise ValueError(
                f"max_long_partial_prefills={long} must be at most "
                f"max_num_partial_prefills={partial}"
            )
        if self.priority_preemption and not self.shares_pages:
            raise ValueError(
                "priority_preemption=True needs allocation='paged': contiguous reservations are "
                "kept to the end"
            )
        if self.long_prefill_token_threshold > longest:
            raise ValueError(
                f"long_prefill_token_threshold={self.long_prefill_token_threshold} must be at "
                f"most max_model_len={longest}"
            )

    @property
    def max_blocks_per_seq(self) -> int:
        """Width of the block tables."""
        return math.ceil(self.max_model_len / self.block_size)

    @property
    def shares_pages(self) -> bool:
        """Whether sequences can have pages in common."""
        return self.allocation == "paged"

    @property
    def num_beam_candidates(self) -> int:
        """Tokens of a row the host may choose from; see `sampling.logprobs.beam_candidates`."""
        return 3 * self.max_beam_width

    @property
    def max_prompt_len(self) -> int:
        """A prompt leaves room for one token, in the context and in the cache."""
        return min(self.max_model_len - 1, self.num_gpu_blocks * self.block_size)


def _integer(name: str, value: object, low: int, high: int | None) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < low:
        raise ValueError(f"{name}={shown(value)} must be an integer of at least {low}")
    if high is not None and int(value) > high:
        raise ValueError(f"{name}={shown(value)} must be at most {high}")
    return int(value)
