"""What compiled kernels do to memory: PTX is parsed and run, addresses and predicates only."""

from pallas_kernels.lab.ptx.kernel import Kernel, parse
from pallas_kernels.lab.ptx.machine import Undecided, run
from pallas_kernels.lab.ptx.memory import SECTOR, Array, Fault

__all__ = ["SECTOR", "Array", "Fault", "Kernel", "Undecided", "parse", "run"]
