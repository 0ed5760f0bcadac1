"""An environment as text that any JSON can hold: variables are bytes, and need not be UTF-8."""

from __future__ import annotations

import os
from collections.abc import Mapping


def packed(environ: Mapping[str, str]) -> dict[str, str]:
    """Each byte as the character of that number."""
    return {_packed(name): _packed(value) for name, value in environ.items()}


def unpacked(packed_environ: Mapping[str, str]) -> dict[str, str]:
    """The environment that was packed."""
    return {_unpacked(name): _unpacked(value) for name, value in packed_environ.items()}


def _packed(text: str) -> str:
    return os.fsencode(text).decode("latin-1")


def _unpacked(text: str) -> str:
    return os.fsdecode(text.encode("latin-1"))
