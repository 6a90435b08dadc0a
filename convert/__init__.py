"""Checkpoints: GGUF files and Hugging Face directories, read into `paxkv.models` parameters."""

from convert.checkpoint import Checkpoint, open_checkpoint
from convert.load import load_params
from convert.pull import resolve

__all__ = ["Checkpoint", "load_params", "open_checkpoint", "resolve"]
