"""Validation of a checkpoint's token ids against its vocabulary."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

logger = logging.getLogger(__name__)


def known_ids(
    source: Path | str, key: str, found: Iterable[int], vocab_size: int
) -> tuple[int, ...]:
    """The ids that the vocabulary has, each once; the others are logged.

    source, key: the file and the field they come from.
    """
    unique = dict.fromkeys(found)
    bad = [token for token in unique if not 0 <= token < vocab_size]
    if bad:
        logger.warning(
            "%s: %s=%s is ignored: the vocabulary has %d tokens", source, key, bad, vocab_size
        )
    return tuple(token for token in unique if 0 <= token < vocab_size)
