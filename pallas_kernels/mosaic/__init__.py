"""The contract on Pallas' Mosaic GPU back end: pages come by TMA, products are wgmma; sm_90.

The lasting route of Pallas on NVIDIA GPUs, and one whose interface still changes; nothing outside
this folder imports it. On a CPU the same kernel runs in Mosaic's interpreter, which is very slow
and for tests. What has no kernel here, writing and copying pages, is XLA's.
"""

from pallas_kernels.mosaic.attention import ragged_paged_attention
from pallas_kernels.mosaic.coverage import HEAD_DIMS, MOST_SHARED_MEMORY, check
from pallas_kernels.mosaic.tuning import Config, Tile

__all__ = [
    "HEAD_DIMS",
    "MOST_SHARED_MEMORY",
    "Config",
    "Tile",
    "check",
    "ragged_paged_attention",
]
