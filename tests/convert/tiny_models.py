"""Tiny random Llama checkpoints, written with the formats' own libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 96, 64, 96, 2, 4, 2, 16

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tensors(seed: int = 0, *, tied: bool = True, bias: bool = False) -> dict[str, np.ndarray]:
    """Random float32 tensors of the model `CONFIG` describes, by Hugging Face name."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    found = {
        "model.embed_tokens.weight": normal(VOCAB, HIDDEN),
        "model.norm.weight": normal(HIDDEN),
    }
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    rows = {"self_attn.q_proj": (q, HIDDEN), "self_attn.k_proj": (kv, HIDDEN)}
    rows |= {"self_attn.v_proj": (kv, HIDDEN), "self_attn.o_proj": (HIDDEN, q)}
    rows |= {"mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN)}
    rows |= {"mlp.down_proj": (HIDDEN, INNER)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{prefix}{name}.weight"] = normal(HIDDEN)
        for name, shape in rows.items():
            found[f"{prefix}{name}.weight"] = normal(*shape)
            if bias:
                found[f"{prefix}{name}.bias"] = normal(shape[0])
    if not tied:
        found["lm_head.weight"] = normal(VOCAB, HIDDEN)
    return found


def write_hf(
    folder: Path,
    weights: dict[str, np.ndarray],
    *,
    shards: int = 1,
    generation: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """A Hugging Face directory; with several shards also their index."""
    folder.mkdir(parents=True, exist_ok=True)
    tied = "lm_head.weight" not in weights
    write_json(folder / "config.json", CONFIG | {"tie_word_embeddings": tied} | config)
    if generation is not None:
        write_json(folder / "generation_config.json", generation)
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
        return folder
    weight_map = {}
    for shard in range(shards):
        file = shard_name(shard + 1, shards)
        part = {name: weights[name] for name in list(weights)[shard::shards]}
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    return folder


def shard_name(number: int, shards: int) -> str:
    return f"model-{number:05d}-of-{shards:05d}.safetensors"


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def gguf_name(name: str) -> str:
    if name in GGUF_NAMES:
        return GGUF_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    block, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[block]}.{kind}"


def llama_cpp_order(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a q or k tensor in llama.cpp's order: the halves of each head interleaved."""
    per_head = weight.reshape(heads, -1, *weight.shape[1:])
    half = per_head.shape[1] // 2
    pairs = np.stack([per_head[:, :half], per_head[:, half:]], axis=2)
    return pairs.reshape(weight.shape)


def write_gguf(
    path: Path,
    weights: dict[str, np.ndarray],
    kind: str = "F32",
    *,
    heads_of_k: int = KV_HEADS,
    architecture: str = "llama",
    extra: dict[str, np.ndarray] | None = None,
    metadata: Any = None,
) -> Path:
    """A GGUF file as llama.cpp's converter writes it; vectors stay float32.

    heads_of_k: the head count k is permuted with, for planting the wrong one. extra: further
    tensors by GGUF name. metadata: called with the writer before the header is written.
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if metadata is not None:
        metadata(writer)
    quant = gguf.GGMLQuantizationType[kind]
    for name, weight in weights.items():
        if ".q_proj." in name:
            weight = llama_cpp_order(weight, HEADS)
        if ".k_proj." in name:
            weight = llama_cpp_order(weight, heads_of_k)
        raw = np.ascontiguousarray(weight)
        if raw.ndim == 1 or kind == "F32":
            writer.add_tensor(gguf_name(name), raw)
        else:
            writer.add_tensor(gguf_name(name), gguf.quantize(raw, quant), raw_dtype=quant)
    for name, weight in (extra or {}).items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
