"""Compiling grammars without stalling the server."""
