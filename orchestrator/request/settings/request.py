"""The checked request of one `orch up`: the job, and how its client shows it and waits for it.

Imports nothing at run time: every verb reads ColorMode.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.core.job.spec import JobSpec
    from orchestrator.core.job.tf_config import TaskRef


# Seconds; the time of a --warm without one.
DEFAULT_WARM_S = 600.0
# The value of a --watch without a pattern.
WATCH_SOURCES = "sources"


class ColorMode(StrEnum):
    """When output is coloured. `auto` means: on a terminal that can show colours."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class TimeFormat(StrEnum):
    """How the time of a line is shown: as HH:MM:SS, or with date, milliseconds and offset."""

    TIME = "time"
    ISO = "iso"

    @classmethod
    def parse(cls, text: str) -> TimeFormat:
        """Raises ValueError with the known words."""
        try:
            return cls(text.strip().lower())
        except ValueError:
            raise ValueError(f'"{text}" is not a format of times; write {" or ".join(cls)}') from None


class WaitFor(StrEnum):
    """The state of the run at which a detached `up` returns."""

    READY = "ready"
    DONE = "done"


class WatchFrom(StrEnum):
    """Where the training of a run begins that a changed source file has started again."""

    START = "start"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class DisplayOptions:
    """How the client shows the run; nothing here reaches a task. `tasks` None shows all of them.

    `wait` implies `detach`, as in docker compose. `warm_s`: how long to keep processes for the next run; 0 turns that
    off, None leaves it to those that are there. `watch`: the pattern of --watch, WATCH_SOURCES for the sources alone.
    """

    tasks: tuple[TaskRef, ...] | None = None
    timestamps: TimeFormat | None = None
    no_prefix: bool = False
    all_lines: bool = False
    color: ColorMode = ColorMode.AUTO
    detach: bool = False
    wait: WaitFor | None = None
    replace: bool = False
    junit: Path | None = None
    ui: bool = False
    warm_s: float | None = None
    watch: str = ""
    watch_from: WatchFrom = WatchFrom.START


@dataclass(frozen=True)
class UpRequest:
    """A checked request. `notices` are sentences to show on stderr before the run starts.

    `existing`: of each directory for results, the nearest one that existed when the request was made.
    `adopt`: the directory of a run that was submitted and waits for this request; None for a new run.
    `continues`: that of the run that the Slurm job of this process had begun before Slurm started the job again.
    """

    spec: JobSpec
    display: DisplayOptions
    notices: tuple[str, ...] = ()
    existing: tuple[Path, ...] = ()
    adopt: Path | None = None
    continues: Path | None = None
