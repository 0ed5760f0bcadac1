"""Descriptors that the client of a run passes to its tasks."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

DESCRIPTORS_VARIABLE = "ORCH_DESCRIPTORS"


class Descriptors:
    """Owns the descriptors of a run: those of `names`, pairs of a name and a task (None: every task)."""

    def __init__(self, names: Sequence[tuple[str, str | None]] = (), fds: Sequence[int] = ()) -> None:
        self._entries = tuple(zip(names, fds, strict=True))

    def of(self, task: str) -> dict[str, int]:
        """The descriptors of a task by name."""
        return {name: fd for (name, wanted), fd in self._entries if wanted in (None, task)}

    def close(self) -> None:
        entries, self._entries = self._entries, ()
        for _, fd in entries:
            os.close(fd)


def variable(numbers: Mapping[str, int]) -> dict[str, str]:
    """Return the variable by which a task finds its descriptors; none if it has none."""
    return {DESCRIPTORS_VARIABLE: json.dumps(dict(numbers))} if numbers else {}
