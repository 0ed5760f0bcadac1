"""How a run ended: the document in result.json."""

from __future__ import annotations

import signal as signals
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict

Outcome = Literal["succeeded", "failed", "stopped", "timed_out", "lost"]


class CauseKind(StrEnum):
    """What happened to the task (or the run) that everything else followed from."""

    EXITED = "exited"
    STOPPED = "stopped"
    LEFT_EARLY = "left_early"
    LIMIT = "limit"
    ORCH = "orch"


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Cause(_Document):
    """`task` is None when no task is to blame (a time limit, orch itself)."""

    task: str | None
    kind: CauseKind
    text: str


class FirstFailure(_Document):
    """The first task that ended badly, by the order of exits. `lines` are the last it wrote; `exception_file` holds
    the whole of its exception, where it could put that down itself."""

    task: str
    exit_code: int | None
    signal: int | None
    exception: str | None
    log: str
    advice: str | None
    lines: tuple[str, ...] = ()
    exception_file: str | None = None


class TaskEnd(_Document):
    """`end` says in words how it came: by itself, stopped by orch, or because of another's failure."""

    task: str
    state: str
    exit_code: int | None
    signal: int | None
    end: str = ""


class RunResult(_Document):
    """result.json. `detection_s` is from a task's exit to orch's knowing, `teardown_s` from there to nothing left,
    `took_s` from the run's start to that; seconds."""

    schema_version: Literal[1] = 1
    run_id: str
    outcome: Outcome
    exit_code: int
    attempts: int
    cause: Cause | None
    first_failure: FirstFailure | None
    detection_s: float | None
    teardown_s: float | None
    took_s: float | None = None
    tasks: tuple[TaskEnd, ...]
    checkpoint_dir: str | None = None

    @property
    def succeeded(self) -> bool:
        return self.outcome == "succeeded"


def exit_text(exit_code: int | None, signal: int | None) -> str:
    """`exit 3`, `SIGKILL`: how a process ended, in the words people use."""
    if signal is not None:
        return signal_name(signal)
    return "still running" if exit_code is None else f"exit {exit_code}"


def signal_name(signal: int) -> str:
    try:
        return signals.Signals(signal).name
    except ValueError:
        return f"signal {signal}"


def shell_code(exit_code: int | None, signal: int | None) -> int:
    """The exit code a shell would show: the code itself, or 128 + the signal."""
    if signal is not None:
        return 128 + signal
    return exit_code or 0
