"""The failure of a cell, with a kind that can be counted."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """The kind of a failure; the values name the rows of a soak report."""

    HANG = "hangs"  # an expected event did not happen
    EXIT_CODE = "wrong exit codes"
    OUTCOME = "wrong outcomes"
    CAUSE = "wrong causes"  # the first failure and the number of attempts count as well
    EVENTS = "events or documents that contradict each other"
    PROCESS = "processes left"
    PORT = "ports left"
    DESCRIPTOR = "descriptors left"
    LOCK = "locks left"
    FILE = "files left"
    SHARED_MEMORY = "shared memory left"
    OTHER = "other errors"


class CellFailure(AssertionError):
    """The run violated one expectation."""

    def __init__(self, kind: Kind, text: object) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class NotAvailable(Exception):
    """This machine cannot run the cell; the message says why."""


def require(condition: object, kind: Kind, text: object) -> None:
    """CellFailure of that kind unless `condition` holds."""
    if not condition:
        raise CellFailure(kind, text)
