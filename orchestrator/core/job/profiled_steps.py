"""`--profile 10-20`: the steps that TensorFlow's profiler records in every task (pure)."""

from __future__ import annotations

import re
from typing import Self

from pydantic import BaseModel, ConfigDict

_STEPS = re.compile(r"\s*([0-9]{1,12})\s*(?:-\s*([0-9]{1,12})\s*)?\Z", re.ASCII)
# A recording of more steps takes memory in every task, and shows nothing else.
MOST_STEPS = 1000


class ProfiledSteps(BaseModel):
    """Steps over all epochs, both included. The first step of a process is 1."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `10-20` or `10`; ValueError."""
        found = _STEPS.match(text)
        if found is None:
            raise ValueError(f'"{text:.40}" is not a range of steps; write 10-20')
        first, last = int(found[1]), int(found[2] or found[1])
        if first < 1:
            raise ValueError("the first step is 1; write 10-20, after the slow first steps")
        if last < first:
            raise ValueError(f"{first}-{last} ends before it begins; write {last}-{first}")
        if last - first >= MOST_STEPS:
            raise ValueError(
                f"{first}-{last} is more than {MOST_STEPS} steps; 10 or 20 show where the time goes"
            )
        return cls(first=first, last=last)

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    @property
    def awaited(self) -> set[int]:
        """The steps after which something happens: a task must report them without delay."""
        return {self.first - 1, self.last} - {0}
