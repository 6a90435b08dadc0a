"""Benchmarks behind `paxkv bench`: workload files in, a table and JSON out."""
