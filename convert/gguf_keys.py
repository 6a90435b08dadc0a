"""Every key of a GGUF file's hyper-parameters: obeyed, irrelevant, or refused unless neutral."""

from __future__ import annotations

import logging

from convert.fields import Fields, require_neutral
from paxkv.models.families.family import Family

logger = logging.getLogger(__name__)

# Without the architecture's name in front.
OBEYED = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.attn_factor",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.type",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
    }
)
IRRELEVANT = frozenset(
    {
        # the tensors say it
        "vocab_size",
        # of what a Llama does not have: other norms, experts while expert_count is 0
        "attention.group_norm_epsilon",
        "attention.group_norm_groups",
        "attention.layer_norm_epsilon",
        "expert_chunk_feed_forward_length",
        "expert_feed_forward_length",
        "expert_gating_func",
        "expert_group_count",
        "expert_group_scale",
        "expert_group_used_count",
        "expert_shared_feed_forward_length",
        "expert_used_count",
        "expert_weights_norm",
        "expert_weights_scale",
        "experts_per_group",
        "interleave_moe_layer_step",
        "moe_every_n_layers",
        "moe_latent_size",
        "router_logit_softcapping",
        # notes
        "classifier.output_labels",
        "pooling_type",
        "rope.scaling.finetuned",
        "tensor_data_layout",
    }
)
_NO: tuple[object, ...] = (0, False, [])
_ONE: tuple[object, ...] = (0, 1)
NEUTRAL: dict[str, tuple[object, ...]] = {
    "activation_sparsity_scale": _NO,
    "altup.active_idx": _NO,
    "altup.num_inputs": _NO,
    "attention.causal": (True,),
    "attention.clamp_kqv": _NO,
    "attention.decay_lora_rank": _NO,
    "attention.gate_lora_rank": _NO,
    "attention.iclr_lora_rank": _NO,
    "attention.key_length_mla": _NO,
    "attention.key_length_swa": _NO,
    "attention.kv_lora_rank": _NO,
    "attention.max_alibi_bias": _NO,
    "attention.output_scale": _ONE,
    "attention.q_lora_rank": _NO,
    "attention.relative_buckets_count": _NO,
    "attention.scale": _NO,
    "attention.shared_kv_layers": _NO,
    "attention.sliding_window_pattern": _NO,
    "attention.temperature_length": _NO,
    "attention.temperature_scale": _NO,
    "attention.value_length_mla": _NO,
    "attention.value_length_swa": _NO,
    "attention.value_residual_mix_lora_rank": _NO,
    "attn_logit_softcapping": _NO,
    "convnext.block_count": _NO,
    "convnext.embedding_length": _NO,
    "decoder_block_count": _NO,
    "decoder_start_token_id": (),
    "embedding_length_out": _NO,
    "embedding_length_per_layer_input": _NO,
    "embedding_scale": _ONE,
    "expert_count": _NO,
    "expert_shared_count": _NO,
    "features_length": _NO,
    "final_logit_softcapping": _NO,
    "full_attention_interval": _NO,
    "kda.head_dim": _NO,
    "leading_dense_block_count": _NO,
    "logit_scale": _ONE,
    "n_deepstack_layers": _NO,
    "nextn_predict_layers": _NO,
    "posnet.block_count": _NO,
    "posnet.embedding_length": _NO,
    "rescale_every_n_layers": _NO,
    "residual_scale": _ONE,
    "rope.dimension_count_swa": _NO,
    "rope.dimension_sections": (0, [], [0, 0, 0, 0]),
    "rope.freq_base_swa": _NO,
    "rope.scaling.alpha": _NO,
    "rope.scaling.yarn_attn_factor": (1,),
    "rope.scaling.yarn_ext_factor": (1,),
    "rope.scaling.yarn_log_multiplier": _NO,
    "shortconv.l_cache": _NO,
    "ssm.conv_kernel": _NO,
    "ssm.dt_b_c_rms": _NO,
    "ssm.group_count": _NO,
    "ssm.inner_size": _NO,
    "ssm.state_size": _NO,
    "ssm.time_step_rank": _NO,
    "swiglu_clamp_exp": _NO,
    "swiglu_clamp_shexp": _NO,
    "swin_norm": _NO,
    "time_decay_extra_dim": _NO,
    "time_mix_extra_dim": _NO,
    "token_shift_count": _NO,
    "use_parallel_residual": _NO,
    "wkv.head_size": _NO,
}
_WHOLE_MODELS = "model"


def check_keys(fields: Fields, family: Family) -> None:
    """Refuse what would change the computation and is not obeyed.

    fields: the metadata, with the architecture's name as prefix. A key that no list has is said in
    the log: llama.cpp ignores it too. Raises ValueError naming the key and its value.
    """
    neutral = {key: values for key, values in NEUTRAL.items() if key not in family.gguf_obeyed}
    require_neutral(fields, neutral, "is not supported")
    known = OBEYED | family.gguf_obeyed | IRRELEVANT | NEUTRAL.keys()
    unknown = sorted(fields.values.keys() - known)
    if unknown:
        names = ", ".join(fields.prefix + key for key in unknown)
        logger.warning("%s: unknown keys are ignored: %s", fields.source, names)


def check_kind(general: Fields) -> None:
    """Refuse files that are part of a model or an addition to one.

    general: all metadata. Raises ValueError naming the key.
    """
    kind = general.text("general.type", _WHOLE_MODELS)
    if kind != _WHOLE_MODELS:
        raise general.wrong("general.type", f"{_WHOLE_MODELS!r}: this file holds no whole model")
    parts = general.integer("split.count", 1, least=0)
    if parts > 1:
        raise ValueError(
            f"{general.source} is one of {parts} parts (split.count); merge them with "
            "llama-gguf-split"
        )
