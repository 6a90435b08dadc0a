"""Capacity plan: bytes to blocks, blocks to requests."""

from __future__ import annotations

from dataclasses import dataclass

from paxkv.capacity.model_bytes import ModelBytes, model_bytes
from paxkv.models.config import ModelConfig

GIB = 1 << 30
LEAST_MEMORY = 1 << 20  # of a device; a smaller number was meant in another unit
KINDS = ("used", "reserved", "internal", "external", "tail", "free")


@dataclass(frozen=True)
class Question:
    """Input of a plan; all of it per device.

    memory: bytes of the device's memory.
    gpu_memory_utilization: share of it that the engine may use.
    kv_cache_memory_bytes: bytes for all pages, instead of what weights and activations leave.
    block_size: tokens per page.
    max_model_len: most tokens of one sequence, prompt and output; 2048 or the model's limit by
        default, whichever is less.
    expected_len: tokens a request has at its end, prompt and output.
    expected_prompt_len: tokens of its prompt; a third of expected_len by default, as in the
        PagedAttention paper's ShareGPT mix (161 of 499).
    weights_dtype: of the weights. kv_cache_dtype: of keys and values; "auto" is the weights' type,
        16 bits at least.
    tensor_parallel_size: devices the model is split over.
    max_num_batched_tokens: tokens in the largest step, for the activation peak.
    max_num_seqs: sequences in one step, for the logits.
    bytes_per_token: of keys and values in all layers, instead of the model's.
    """

    memory: int | None = None
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: int | None = None
    block_size: int = 16
    max_model_len: int | None = None
    expected_len: int = 512
    expected_prompt_len: int | None = None
    weights_dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = 1
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    bytes_per_token: int | None = None

    def __post_init__(self) -> None:
        for name in (
            "memory",
            "kv_cache_memory_bytes",
            "block_size",
            "max_model_len",
            "expected_len",
            "expected_prompt_len",
            "tensor_parallel_size",
            "max_num_batched_tokens",
            "max_num_seqs",
            "bytes_per_token",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if self.memory is not None and self.memory < LEAST_MEMORY:
            raise ValueError(
                f"memory={self.memory} is a number of bytes: give it a unit, as in {self.memory}GiB"
            )
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                f"gpu_memory_utilization={self.gpu_memory_utilization} must be above 0 and at "
                "most 1"
            )
        if self.memory is None and self.kv_cache_memory_bytes is None:
            raise ValueError("memory or kv_cache_memory_bytes must be given")


@dataclass(frozen=True)
class Holding:
    """Requests held at once, and what the slots hold when each is half way through its answer.

    slots: tokens by kind, as in the paging study: used, reserved, internal, external, tail,
    free; they add up to the pool.
    """

    requests: int
    slots: dict[str, float]


@dataclass(frozen=True)
class CapacityPlan:
    """The answer, per device; bytes unless said otherwise.

    kv_bytes: for pages. blocks: pages of block_size tokens in it; an engine rounds down to the
    grid of its compiled shapes. model: None when bytes_per_token stood in for one.
    """

    bytes_per_token: int
    kv_bytes: int
    blocks: int
    block_size: int
    max_model_len: int
    expected_len: int
    model: ModelBytes | None
    contiguous: Holding
    paged: Holding

    @property
    def slots(self) -> int:
        return self.blocks * self.block_size


def make_plan(question: Question, config: ModelConfig | None = None) -> CapacityPlan:
    """Plan for the model of `config`, or for `bytes_per_token` alone.

    Raises:
        ValueError: the question contradicts itself or the model, or the memory does not hold the
            weights and one block; says how many bytes are missing.
    """
    model = _model(question, config)
    per_token = question.bytes_per_token
    if per_token is None:
        if model is None:
            raise ValueError("bytes_per_token must be given where no model is")
        per_token = model.kv_per_token
    longest = _max_model_len(question, config)
    kv_bytes = _kv_bytes(question, model)
    blocks = kv_bytes // (per_token * question.block_size)
    if not blocks:
        raise ValueError(
            f"kv_cache_memory_bytes={kv_bytes} is less than one block of "
            f"{per_token * question.block_size} bytes"
        )
    expected = question.expected_len
    prompt = question.expected_prompt_len or max(1, expected // 3)
    if not prompt <= expected <= longest:
        raise ValueError(
            f"expected_len={expected} must be from expected_prompt_len={prompt} to "
            f"max_model_len={longest}"
        )
    slots = blocks * question.block_size
    now = (prompt + expected) / 2
    return CapacityPlan(
        bytes_per_token=per_token,
        kv_bytes=kv_bytes,
        blocks=blocks,
        block_size=question.block_size,
        max_model_len=longest,
        expected_len=expected,
        model=model,
        contiguous=_contiguous(slots, longest, expected, now),
        paged=_paged(slots, question.block_size, expected, now),
    )


def _model(question: Question, config: ModelConfig | None) -> ModelBytes | None:
    if config is None:
        return None
    kv_dtype = question.kv_cache_dtype
    if kv_dtype == "auto":
        wide = question.weights_dtype in ("float32", "bfloat16", "float16")
        kv_dtype = question.weights_dtype if wide else "bfloat16"
    return model_bytes(
        config,
        question.weights_dtype,
        kv_dtype,
        question.tensor_parallel_size,
        question.max_num_batched_tokens,
        question.max_num_seqs,
    )


def _max_model_len(question: Question, config: ModelConfig | None) -> int:
    if question.max_model_len is not None:
        return question.max_model_len
    return 2048 if config is None else min(2048, config.max_position_embeddings)


def _kv_bytes(question: Question, model: ModelBytes | None) -> int:
    if question.kv_cache_memory_bytes is not None:
        return question.kv_cache_memory_bytes
    assert question.memory is not None
    allowed = int(question.memory * question.gpu_memory_utilization)
    taken = model.weights + model.activations if model else 0
    if allowed <= taken:
        raise ValueError(
            f"gpu_memory_utilization={question.gpu_memory_utilization} of "
            f"{question.memory / GIB:.2f} GiB allows {allowed / GIB:.2f} GiB; weights and "
            f"activations take {taken / GIB:.2f} GiB, so {(taken - allowed) / GIB:.2f} GiB are "
            "missing before the first block"
        )
    return allowed - taken


def _contiguous(slots: int, longest: int, expected: int, now: float) -> Holding:
    requests = slots // longest
    return Holding(
        requests,
        _slots(
            slots,
            used=requests * now,
            reserved=requests * (expected - now),
            internal=requests * (longest - expected),
            external=slots - requests * longest,
        ),
    )


def _paged(slots: int, block_size: int, expected: int, now: float) -> Holding:
    """Requests that fit when all are at their full length; a last page is half empty on average."""
    requests = slots // (-(-expected // block_size) * block_size)
    tail = min((block_size - 1) / 2, -(-expected // block_size) * block_size - now)
    return Holding(requests, _slots(slots, used=requests * now, tail=requests * tail))


def _slots(total: int, **kinds: float) -> dict[str, float]:
    found = {kind: kinds.get(kind, 0.0) for kind in KINDS}
    found["free"] = total - sum(found.values())
    return found
