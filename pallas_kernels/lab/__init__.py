"""For whoever writes a kernel: a float64 oracle and the battery that every back end must pass."""
