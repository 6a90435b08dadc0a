"""A look as the JSON document that the dashboard draws."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import numpy as np

from paxkv.server.dashboard.look import Holding, Look, RequestLook
from paxkv.server.dashboard.traffic import Traffic

SHARED, CACHED = 1, 2
MOST_TABLE_PAGES = 4096


def pool_document(look: Look) -> dict[str, Any]:
    """Every page: `owner` is the place of its first owner in `requests` plus 1, 0 for none.

    owner: base64 of uint16, little-endian. flags: base64 of uint8, of SHARED and CACHED. Both
    begin with page 1.
    """
    owner = np.zeros(look.num_blocks + 1, "<u2")
    for place in reversed(range(len(look.requests))):
        for holding in look.requests[place].holdings:
            owner[holding.pages] = place + 1
    used = look.references[1:] > 0
    shared = look.references[1:] > 1
    cached = look.cached[1:]
    flags = SHARED * shared.view(np.uint8) + CACHED * cached.view(np.uint8)
    return {
        "pages": look.num_blocks,
        "block_size": look.block_size,
        "used": int(used.sum()),
        "cached": int((cached & ~used).sum()),
        "shared": int(shared.sum()),
        "owner": b64encode(owner[1:].tobytes()).decode(),
        "flags": b64encode(flags.tobytes()).decode(),
    }


def request_documents(look: Look) -> list[dict[str, Any]]:
    return [
        {
            "number": request.number,
            "state": request.state,
            "prompt": request.prompt,
            "output": request.output,
            "cached": request.cached,
            "preemptions": request.preemptions,
            "age": round(request.age, 2),
            "sequences": len(request.holdings),
            "pages": _pages(request),
        }
        for request in look.requests
    ]


def _pages(request: RequestLook) -> int:
    if len(request.holdings) < 2:
        return sum(len(holding.pages) for holding in request.holdings)
    return len(np.unique(np.concatenate([holding.pages for holding in request.holdings])))


def table_document(look: Look, number: int) -> dict[str, Any] | None:
    """The block tables of one request; None if it does not exist (any more)."""
    for request in look.requests:
        if request.number == number:
            return {"number": number, "sequences": [_row(look, h) for h in request.holdings]}
    return None


def _row(look: Look, holding: Holding) -> dict[str, Any]:
    pages = holding.pages[:MOST_TABLE_PAGES]
    return {
        "index": holding.index,
        "tokens": holding.num_tokens,
        "blocks": len(holding.pages),
        "pages": pages.tolist(),
        "references": look.references[pages].tolist(),
        "cached": look.cached[pages].astype(int).tolist(),
    }


def traffic_document(traffic: Traffic) -> dict[str, Any]:
    return {
        "generated": traffic.generated,
        "computed": traffic.computed,
        "num_first_tokens": traffic.num_first_tokens,
        "first_tokens": [
            [round(when, 3), round(seconds, 5)] for when, seconds in traffic.first_tokens
        ],
    }


def queue_document(look: Look) -> dict[str, Any]:
    return {
        "running": look.running,
        "waiting": look.waiting,
        "swapped": look.swapped,
        "preemptions": look.preemptions,
        "prefix_queries": look.prefix_queries,
        "prefix_hits": look.prefix_hits,
    }
