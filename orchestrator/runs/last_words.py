"""The end of a raw log: what a task said last."""

from __future__ import annotations

import os
from pathlib import Path

# An exception with its causes and a peer's long gRPC status fit.
_BYTES = 32 * 1024


def last_words(log: Path) -> str:
    """The last 32 KiB as text, invalid bytes replaced; empty where there is no log."""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - _BYTES))
            return stream.read(_BYTES).decode(errors="replace")
    except OSError:
        return ""
