"""Hyper-parameters of one decoder of the Llama family."""

from __future__ import annotations

from dataclasses import dataclass

ROPE_TYPES = ("linear", "dynamic", "yarn", "llama3", "per_frequency")
ACTIVATIONS = ("silu",)


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the length a model was trained on.

    `rope_type` is one of `ROPE_TYPES`; a field a type does not use stays None.
    `original_max_position_embeddings` counts tokens. `freq_factors` (GGUF's `rope_freqs.weight`)
    divides each of the head_dim / 2 inverse frequencies and may accompany "linear" too.
    """

    rope_type: str
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    freq_factors: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.rope_type not in ROPE_TYPES:
            raise ValueError(
                f"rope_scaling: unknown rope_type {self.rope_type!r}; "
                f"supported are 'default', {', '.join(repr(t) for t in ROPE_TYPES)}"
            )
        if not self.factor > 0:
            raise ValueError(f"rope_scaling: factor={self.factor!r} must be above 0")
        if self.rope_type == "llama3":
            for field in (
                "low_freq_factor",
                "high_freq_factor",
                "original_max_position_embeddings",
            ):
                if getattr(self, field) is None:
                    raise ValueError(f"rope_scaling: rope_type 'llama3' needs {field}")
            if self.low_freq_factor == self.high_freq_factor:
                raise ValueError(
                    "rope_scaling: low_freq_factor and high_freq_factor must differ, "
                    f"both are {self.low_freq_factor!r}"
                )
        if self.rope_type == "per_frequency" and self.freq_factors is None:
            raise ValueError("rope_scaling: rope_type 'per_frequency' needs freq_factors")
        if self.freq_factors is not None and self.rope_type not in ("linear", "per_frequency"):
            raise ValueError(
                f"rope_scaling: freq_factors cannot be combined with rope_type {self.rope_type!r}"
            )


@dataclass(frozen=True)
class ModelConfig:
    """Everything the decoder needs to know about a model, with Hugging Face's names.

    Sizes are element counts, `max_position_embeddings` and `sliding_window` are tokens.
    `eos_token_ids` is every id that ends a sequence (generation_config, config and tokenizer).
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    sliding_window: int | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    hidden_act: str = "silu"
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for field in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "max_position_embeddings",
        ):
            value = getattr(self, field)
            if value < 1:
                raise ValueError(f"{field}={value!r} must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} must be a multiple of num_kv_heads={self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even (rotary pairs)")
        if not self.rope_theta > 1:
            raise ValueError(f"rope_theta={self.rope_theta!r} must be above 1")
        if self.hidden_act not in ACTIVATIONS:
            raise ValueError(
                f"hidden_act={self.hidden_act!r} is not supported; "
                f"allowed: {', '.join(ACTIVATIONS)}"
            )
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ValueError(f"sliding_window={self.sliding_window!r} must be at least 1 or None")
        scaling = self.rope_scaling
        factors = None if scaling is None else scaling.freq_factors
        if factors is not None and len(factors) != self.head_dim // 2:
            raise ValueError(
                f"rope_scaling: {len(factors)} freq_factors, but head_dim "
                f"{self.head_dim} needs {self.head_dim // 2}"
            )

    @property
    def q_size(self) -> int:
        """Rows of the query projection: num_heads * head_dim."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Rows of the key (or value) projection: num_kv_heads * head_dim."""
        return self.num_kv_heads * self.head_dim

    @property
    def original_length(self) -> int:
        """Tokens the model was trained on, before rotary scaling."""
        scaling = self.rope_scaling
        original = None if scaling is None else scaling.original_max_position_embeddings
        return original or self.max_position_embeddings

    @property
    def derived_max_len(self) -> int:
        """The longest sequence (tokens) the configuration allows, as vLLM derives it.

        linear, dynamic and yarn stretch the original length by their factor, once: the
        configuration's `original_max_position_embeddings` where it has one, else
        `max_position_embeddings`. llama3 and unscaled models state the final length themselves.
        """
        scaling = self.rope_scaling
        if scaling is None or scaling.rope_type not in ("linear", "dynamic", "yarn"):
            return self.max_position_embeddings
        return int(self.original_length * scaling.factor)
