"""The contract on Pallas' Triton back end: NVIDIA GPUs from sm_80 on.

JAX deprecates this route; nothing outside this folder imports it. On a CPU the same kernels run in
Pallas' interpreter, which is slow and for tests.
"""

from pallas_kernels.contract import STANDARD
from pallas_kernels.tiles import prepare
from pallas_kernels.triton.attention import attention
from pallas_kernels.triton.cascade import cascade_attention
from pallas_kernels.triton.copy import copy_pages
from pallas_kernels.triton.coverage import check
from pallas_kernels.triton.tuning import Config, Tile
from pallas_kernels.triton.write import write_kv

page_layout = STANDARD

__all__ = [
    "Config",
    "Tile",
    "attention",
    "cascade_attention",
    "check",
    "copy_pages",
    "page_layout",
    "prepare",
    "write_kv",
]
