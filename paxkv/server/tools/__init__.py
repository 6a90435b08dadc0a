"""Tool definitions and the calls a model makes."""
