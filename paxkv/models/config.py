"""Hyper-parameters of one decoder, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

ROPE_TYPES = ("linear", "dynamic", "yarn", "llama3", "per_frequency")
ACTIVATIONS = ("silu", "gelu_pytorch_tanh")


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
class RopeParameters:
    """One rotary embedding: base and scaling."""

    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        if not self.rope_theta > 1:
            raise ValueError(f"rope_theta={self.rope_theta!r} must be above 1")


@dataclass(frozen=True)
class LayerKind:
    """Options in which layers of one model differ; the decoder traces each kind once.

    Attributes:
        window: a token sees at most this many positions, its own included; None for all.
        rope: index into `ModelConfig.ropes`.
        num_experts: 0 for a dense MLP.
    """

    window: int | None = None
    rope: int = 0
    num_experts: int = 0

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"sliding_window={self.window!r} must be at least 1 or None")
        if self.num_experts:
            raise ValueError(
                f"num_experts={self.num_experts!r}: mixtures of experts are not supported yet, "
                "only dense MLPs (0)"
            )


@dataclass(frozen=True)
class ModelConfig:
    """Configuration of a decoder, under Hugging Face's names.

    Sizes are element counts, `max_position_embeddings` and windows are tokens.

    Attributes:
        architecture: name of the family, see `paxkv.models.families`.
        rope_theta, rope_scaling: the rotary embedding of index 0.
        other_ropes: those of index 1 and on.
        sliding_window: of all layers, where they are all of one kind.
        layer_kinds: the kind of each layer, where they differ; `layers` is what to read.
        qk_norm: whether queries and keys are normalized, head by head, before they are rotated.
        post_norms: whether the outputs of attention and MLP are normalized too ("sandwich" norms).
        norm_unit_offset: whether norms multiply by 1 + weight, in float32.
        embedding_scale: factor on the embeddings, rounded to their type.
        attention_scale: factor on the scores; None for head_dim ** -0.5.
        attn_logit_softcapping: scores become `cap * tanh(score / cap)`.
        final_logit_softcapping: the same for logits.
        eos_token_ids: every id that ends a sequence (generation_config, config and tokenizer).
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
    layer_kinds: tuple[LayerKind, ...] = ()
    other_ropes: tuple[RopeParameters, ...] = ()
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    norm_unit_offset: bool = False
    hidden_act: str = "silu"
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
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
        if self.hidden_act not in ACTIVATIONS:
            raise ValueError(
                f"hidden_act={self.hidden_act!r} is not supported; "
                f"allowed: {', '.join(ACTIVATIONS)}"
            )
        for field in (
            "embedding_scale",
            "attention_scale",
            "attn_logit_softcapping",
            "final_logit_softcapping",
        ):
            value = getattr(self, field)
            if value is not None and not value > 0:
                raise ValueError(f"{field}={value!r} must be above 0")
        self._check_layers()
        self._check_ropes()

    def _check_layers(self) -> None:
        if self.layer_kinds and self.sliding_window is not None:
            raise ValueError("sliding_window and layer_kinds: the kinds have windows of their own")
        if len(self.layers) != self.num_layers:
            raise ValueError(f"{len(self.layers)} layer_kinds, but num_layers={self.num_layers}")
        for kind in self.layers:
            if not 0 <= kind.rope < len(self.ropes):
                raise ValueError(f"{kind} must have a rope below {len(self.ropes)}")

    def _check_ropes(self) -> None:
        for rope in self.ropes:
            factors = None if rope.rope_scaling is None else rope.rope_scaling.freq_factors
            if factors is not None and len(factors) != self.head_dim // 2:
                raise ValueError(
                    f"rope_scaling: {len(factors)} freq_factors, but head_dim "
                    f"{self.head_dim} needs {self.head_dim // 2}"
                )

    @property
    def layers(self) -> tuple[LayerKind, ...]:
        """The kind of each layer."""
        return self.layer_kinds or (LayerKind(self.sliding_window),) * self.num_layers

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The different windows, in the order of the layers."""
        return tuple(dict.fromkeys(kind.window for kind in self.layers))

    @property
    def ropes(self) -> tuple[RopeParameters, ...]:
        """The rotary embeddings, by index."""
        return (RopeParameters(self.rope_theta, self.rope_scaling), *self.other_ropes)

    @property
    def score_scale(self) -> float:
        """The factor on the scores."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def q_size(self) -> int:
        """Rows of the query projection: num_heads * head_dim."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Rows of the key (or value) projection: num_kv_heads * head_dim."""
        return self.num_kv_heads * self.head_dim

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
        original = scaling.original_max_position_embeddings or self.max_position_embeddings
        return int(original * scaling.factor)
