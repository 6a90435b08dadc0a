"""The OpenAI-compatible server: an engine in its own thread behind FastAPI."""
