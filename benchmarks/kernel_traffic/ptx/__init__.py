"""What compiled kernels do to memory: PTX is parsed and run, addresses and predicates only."""

from benchmarks.kernel_traffic.ptx.kernel import Kernel, parse
from benchmarks.kernel_traffic.ptx.machine import Unbalanced, Undecided, run
from benchmarks.kernel_traffic.ptx.memory import SECTOR, Array, Fault
from benchmarks.kernel_traffic.ptx.tensors import MAP_BYTES, TensorMap, TensorMaps

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
