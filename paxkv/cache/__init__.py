"""The page arrays on device: one pytree, allocated once, donated through every step."""

from paxkv.cache.pages import PageLayout, allocate

__all__ = ["PageLayout", "allocate"]
