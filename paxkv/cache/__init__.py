"""The page arrays on device: one pytree, allocated once, donated through every step."""

from paxkv.cache.pages import PageLayout, allocate
from paxkv.cache.swap import HostPages

__all__ = ["HostPages", "PageLayout", "allocate"]
