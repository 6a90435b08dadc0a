"""What compiled kernels do to memory: PTX is parsed and run, addresses and predicates only."""

from pallas_kernels.lab.ptx.kernel import Kernel, parse
from pallas_kernels.lab.ptx.machine import Unbalanced, Undecided, run
from pallas_kernels.lab.ptx.memory import SECTOR, Array, Fault
from pallas_kernels.lab.ptx.tensors import MAP_BYTES, TensorMap, TensorMaps

__all__ = [
    "MAP_BYTES",
    "SECTOR",
    "Array",
    "Fault",
    "Kernel",
    "TensorMap",
    "TensorMaps",
    "Unbalanced",
    "Undecided",
    "parse",
    "run",
]
