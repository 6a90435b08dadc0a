"""Sampling: what a request asks for (`params`), and the device functions that sample its tokens."""
