"""What the doctor says about one thing (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is: as it should be; worth knowing; may well hurt; a run cannot work."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """`topic` is one word or two, `text` one sentence, `where` the file, variable or program it is about, `fix` what
    to do; every warning and problem has one."""

    level: Level
    topic: str
    text: str
    where: str | None = None
    fix: str | None = None

    def __post_init__(self) -> None:
        if self.level in (Level.WARNING, Level.PROBLEM) and not self.fix:
            raise ValueError(f"{self.topic}: a {self.level} needs a fix")


def is_healthy(findings: Iterable[Finding]) -> bool:
    return all(finding.level is not Level.PROBLEM for finding in findings)
