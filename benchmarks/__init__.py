"""Measurements that need a checkout; nothing here is in the wheel."""
