"""The contract on Pallas' Mosaic GPU back end: pages come by TMA, products are wgmma; sm_90.

The lasting route of Pallas on NVIDIA GPUs, and one whose interface still changes; nothing outside
this folder imports it. On a CPU the same kernel runs in Mosaic's interpreter, which is very slow
and for tests. What has no kernel here, writing and copying pages, is XLA's.
"""

from pallas_kernels.contract import STANDARD
from pallas_kernels.mosaic.attention import attention
from pallas_kernels.mosaic.coverage import HEAD_DIMS, MOST_SHARED_MEMORY, check
from pallas_kernels.mosaic.tuning import Config, Tile
from pallas_kernels.tiles import prepare
from pallas_kernels.xla import copy_pages, write_kv

page_layout = STANDARD

__all__ = [
    "HEAD_DIMS",
    "MOST_SHARED_MEMORY",
    "Config",
    "Tile",
    "attention",
    "check",
    "copy_pages",
    "page_layout",
    "prepare",
    "write_kv",
]
