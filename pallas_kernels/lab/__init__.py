"""Tools for kernel authors: a float64 oracle and the battery that every back end must pass."""
