"""Scheduling on the host, stepping on the device."""
