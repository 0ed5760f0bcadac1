"""What a finished training of several workers has left, for several files to look at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Trained:
    """Its logs and files; `progress` is what the chief wrote to its pipe."""

    outputs: list[str]
    checkpoints: Path
    event_files: Path
    scratch: list[list[str]]
    progress: bytes


def names_in(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())
