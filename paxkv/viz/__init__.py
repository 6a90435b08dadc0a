"""Pictures of an engine's memory, for a terminal and for a notebook."""

from paxkv.viz.page_map import PageMap, page_map

__all__ = ["PageMap", "page_map"]
