"""Sampling: parameters of a request, and the device functions that sample its tokens."""
