"""A number and what it counts, one or many of them."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 epoch`, `10 epochs`; `many` where it is not `one` with an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"
