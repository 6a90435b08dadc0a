"""What is measured, at full size and for a dry run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# Cells above it are skipped.
MOST_BYTES = 32 << 30


@dataclass(frozen=True)
class Sizes:
    """copy_bytes: of the array that is copied. matmul: rows and columns of the square product.
    cells: (batch, context) of the decode grid, the most telling first. prefills: (batch, tokens).
    heads, kv_heads, head_dim, page_size: of both. numerics: (head_dim, page_size) of the checks of
    every kernel; battery: whether its cases too. model, engine: the engine's model and options.
    running, prompt, steps: of its decode step. chain: kernels launched behind each other to see
    what a launch costs. budget: seconds of each part.
    """

    copy_bytes: int = 2 << 30
    matmul: int = 8192
    cells: tuple[tuple[int, int], ...] = (
        (64, 8192),
        (64, 1024),
        (256, 1024),
        (16, 8192),
        (1, 8192),
        (16, 32768),
        (1, 131072),
        (64, 32768),
        (256, 8192),
        (1, 1024),
        (4, 131072),
        (256, 128),
        (1, 32768),
        (64, 128),
        (1, 128),
        (16, 131072),
        (256, 32768),
        (64, 131072),
        (256, 131072),
    )
    prefills: tuple[tuple[int, int], ...] = ((1, 8192), (1, 2048), (4, 2048))
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    page_size: int = 16
    numerics: tuple[tuple[int, int], ...] = ((64, 16), (128, 16), (128, 64), (256, 16))
    battery: bool = True
    model: dict[str, Any] = field(
        default_factory=lambda: {
            "vocab_size": 128256,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_layers": 16,
            "num_heads": 32,
            "num_kv_heads": 8,
            "head_dim": 64,
            "max_position_embeddings": 8192,
        }
    )
    engine: dict[str, Any] = field(
        default_factory=lambda: {
            "max_num_seqs": 64,
            "max_num_batched_tokens": 2048,
            "max_model_len": 2048,
            "num_gpu_blocks_override": 4096,
        }
    )
    running: int = 64
    prompt: int = 512
    steps: int = 32
    chain: int = 32
    budget: dict[str, float] = field(
        default_factory=lambda: {
            "launches": 75.0,
            "device": 25.0,
            "numerics": 110.0,
            "decode": 120.0,
            "prefill": 40.0,
            "engine": 100.0,
        }
    )


DRY = Sizes(
    copy_bytes=1 << 20,
    matmul=64,
    cells=((2, 40), (1 << 14, 1 << 20)),
    prefills=((1, 24),),
    heads=4,
    kv_heads=2,
    head_dim=16,
    numerics=((64, 16),),
    battery=False,
    model={
        "vocab_size": 128,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
    },
    engine={
        "max_num_seqs": 2,
        "max_num_batched_tokens": 32,
        "max_model_len": 64,
        "num_gpu_blocks_override": 32,
        "enforce_eager": True,
    },
    running=2,
    prompt=6,
    steps=3,
    chain=2,
)
