"""Prometheus metrics, engine snapshots and trace spans."""
