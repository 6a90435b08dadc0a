"""`paxkv bench serve`: load for any server with OpenAI's API, and its latencies."""
