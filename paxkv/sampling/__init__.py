"""Sampling: what a request asks for (`params`), and the device functions that draw its tokens."""
