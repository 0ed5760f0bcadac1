"""What can be wrong with a run, by kinds that can be counted."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What was found; the names of a soak's rows."""

    HANG = "hangs"  # what had to happen did not
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


class Wrong(AssertionError):
    """One finding."""

    def __init__(self, kind: Kind, text: object) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class NotHere(Exception):
    """What a cell needs is not to be had on this machine; why."""


def require(condition: object, kind: Kind, text: object) -> None:
    """Wrong of that kind if it is not so."""
    if not condition:
        raise Wrong(kind, text)
