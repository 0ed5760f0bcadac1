"""The exceptions of orch and the exit code each one means.

OrchError (125)              orch itself could not do it
├── UsageError (2)           the request cannot be right: an option, orch.toml, the environment
│   └── NotOurs (2)          a directory or file that another user owns or can write
├── NoSuchRun (3)            no run answers to that name or id
├── NameTaken (4)            an explicit --name that is live
├── EngineError (125)        an agent or supervisor could not be started or was lost
├── NewerFormat (125)        the run's files were written by a later version of orch
└── RunEnded                 a run ended otherwise than by success; carries its result
    ├── TaskFailed (n)       a task failed; carries task, exit_code, log
    ├── RunTimedOut (124)
    ├── RunStopped (42/130/143)
    └── RunLost (125)        the supervisor was killed; the end is not known
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.text.clean import safe_lines

if TYPE_CHECKING:
    from orchestrator.core.state.result import RunResult


class ExitCode(IntEnum):
    """The exit codes of `orch` that are its own (a task's own code passes through as it is)."""

    OK = 0
    USAGE = 2
    NO_SUCH_RUN = 3
    NAME_TAKEN = 4
    # As PreemptionCheckpointHandler: the state is saved, restart me.
    NOTICE = 42
    TIMED_OUT = 124
    ORCH = 125
    INTERRUPTED = 130
    HOST_LOST = 137
    OUTPUT_CLOSED = 141
    TERMINATED = 143


class OrchError(Exception):
    """The root: str() of any of these is a message for people (what, where, what to do).

    Control sequences in the text that it quotes are removed: a traceback is printed as it is.
    """

    exit_code: int = ExitCode.ORCH

    def __init__(self, message: str = "") -> None:
        super().__init__(safe_lines(message))


class UsageError(OrchError):
    """The request cannot be right; nothing was started."""

    exit_code = ExitCode.USAGE


class NotOurs(UsageError, PermissionError):
    """`path` belongs to another user, `owner`, or others may write to it. `remedy` says what to do.

    It is also an OSError: what reads many files skips this one like an unreadable one.
    """

    def __init__(self, path: Path, owner: int, reason: str, remedy: str) -> None:
        super().__init__(f"{path}: {reason}; {remedy}")
        self.path = path
        self.owner = owner
        self.reason = reason
        self.remedy = remedy


class NoSuchRun(OrchError):
    exit_code = ExitCode.NO_SUCH_RUN


class NameTaken(OrchError):
    exit_code = ExitCode.NAME_TAKEN


class EngineError(OrchError):
    exit_code = ExitCode.ORCH


class NewerFormat(OrchError):
    exit_code = ExitCode.ORCH


class RunEnded(OrchError):
    """A run that did not succeed; `result` says how it ended."""

    def __init__(self, message: str, result: RunResult) -> None:
        super().__init__(message)
        self.result = result
        self.exit_code = result.exit_code


class TaskFailed(RunEnded):
    """`task` failed first: `task_exit_code` (None when a signal ended it), `log` its raw log file."""

    def __init__(
        self, message: str, result: RunResult, task: str, task_exit_code: int | None, log: Path | None
    ) -> None:
        super().__init__(message, result)
        self.task = task
        self.task_exit_code = task_exit_code
        self.log = log


class RunTimedOut(RunEnded):
    pass


class RunStopped(RunEnded):
    pass


class RunLost(RunEnded):
    pass
