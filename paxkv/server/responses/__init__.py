"""The pieces of a /v1/responses turn: body, items, events, store."""
