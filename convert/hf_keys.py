"""Every key of a config.json: obeyed, irrelevant here, or refused unless it changes nothing."""

from __future__ import annotations

import logging

from convert.fields import Fields, require_neutral
from paxkv.models.families.family import Family
from paxkv.models.families.registry import FAMILIES

logger = logging.getLogger(__name__)

# In all families; some obey more.
OBEYED = frozenset(
    {
        "architectures",
        "attention_bias",
        "bos_token_id",
        "eos_token_id",
        "head_dim",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "layer_types",
        "max_position_embeddings",
        "mlp_bias",
        "model_type",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "sliding_window",
        "tie_word_embeddings",
        "vocab_size",
    }
)

IRRELEVANT = frozenset(
    {
        # training
        "attention_dropout",
        "initializer_range",
        "use_cache",
        # the same sums in another order
        "chunk_size_feed_forward",
        "pretraining_tp",
        # what a call of transformers returns
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "use_return_dict",
        # heads that generate no text
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        # the type of the weights is that of the stored tensors
        "dtype",
        "torch_dtype",
        # notes, and how transformers runs a model
        "_attn_implementation_autoset",
        "_commit_hash",
        "_name_or_path",
        "_sliding_window_pattern",
        "attn_implementation",
        "auto_map",
        "experts_implementation",
        "name_or_path",
        "transformers.js_config",
        "transformers_version",
        "is_llama_config",
        # a row of the embedding that is read like any other; and how requests are padded
        "pad_token_id",
        # sampling has parameters of its own
        "do_sample",
        "length_penalty",
        "max_length",
        "min_length",
        "no_repeat_ngram_size",
        "num_beams",
        "num_return_sequences",
        "repetition_penalty",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
    }
)

_NO: tuple[object, ...] = (None, False, 0)
_ONE: tuple[object, ...] = (None, 1)
_ABSENT: tuple[object, ...] = (None, [], {})
# Keys of transformers, of vLLM's reading of a Llama, and of related families.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "alibi": _NO,
    "attention_chunk_size": _ABSENT,
    "attention_multiplier": _ABSENT,
    "attn_logit_softcapping": _NO,
    "attn_temperature_tuning": _NO,
    "bias": _NO,
    "clip_qkv": _ABSENT,
    "compression_config": _ABSENT,
    "cross_attention_layers": _ABSENT,
    "embedding_multiplier": _ONE,
    "final_logit_softcapping": _NO,
    "is_causal": (None, True),
    "is_encoder_decoder": _NO,
    "kv_sharing_modes": _ABSENT,
    "llama_4_scaling": _ABSENT,
    "logit_scale": _ONE,
    "logits_scaling": _ONE,
    "max_window_layers": _ABSENT,
    "moe_layers": _ABSENT,
    "n_routed_experts": _NO,
    "no_rope_layer_interval": _NO,
    "no_rope_layers": _ABSENT,
    "num_experts": _NO,
    "num_kv_shared_layers": _NO,
    "num_local_experts": _NO,
    "partial_rotary_factor": _ONE,
    "per_layer_config": _ABSENT,
    "qk_layernorm": _NO,
    "qkv_bias": _NO,
    "quantization_config": (None, {}),
    "query_pre_attn_scalar": _ABSENT,
    "residual_multiplier": _ONE,
    "rope_interleaved": _NO,
    "rotary_pct": _ONE,
    "scale_emb": _ONE,
    "sliding_window_pattern": _ABSENT,
    "use_bidirectional_attention": _NO,
    "use_qk_norm": _NO,
    "use_sliding_window": (None, True),
}


def obeyed_keys(family: Family) -> frozenset[str]:
    """The keys of a config.json that say something in `family`."""
    return (OBEYED - {"hidden_act"}) | {family.activation[0]} | family.obeyed


def neutral_values(family: Family) -> dict[str, tuple[object, ...]]:
    """The values of keys that say something in other families, and must say nothing here."""
    return {key: values for key, values in NEUTRAL.items() if key not in obeyed_keys(family)}


def check_keys(fields: Fields, family: Family) -> None:
    """Refuse what would change the computation and is not obeyed.

    A key that no list has is said in the log: transformers ignores it too.
    Raises ValueError naming the key and its value.
    """
    _check_architecture(fields)
    quantization = fields.section("quantization_config")
    if quantization:
        method = quantization.get("quant_method")
        raise ValueError(
            f"{fields.source}: quantization_config: quantization {method!r} is not supported"
        )
    require_neutral(fields, neutral_values(family), "is not supported")
    transformers_config = family.architectures[0].replace("ForCausalLM", "Config")
    require_neutral(fields, family.absent, f"is no key of transformers' {transformers_config}")
    unknown = sorted(fields.values.keys() - obeyed_keys(family) - IRRELEVANT - NEUTRAL.keys())
    if unknown:
        logger.warning("%s: unknown keys are ignored: %s", fields.source, ", ".join(unknown))


def _check_architecture(fields: Fields) -> None:
    """Refuse heads that generate no text; the family is that of `model_type`."""
    value = fields.values.get("architectures")
    if not value:
        return
    known = [name for family in FAMILIES for name in family.architectures]
    if not isinstance(value, list) or set(known).isdisjoint(map(str, value)):
        raise fields.wrong("architectures", f"one of {', '.join(known)}")
