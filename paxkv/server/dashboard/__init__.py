"""The page at `/`: what the pool, the queue and the clock do, and a chat. Files in `assets`."""
