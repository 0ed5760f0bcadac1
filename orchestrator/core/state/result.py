"""The result of a run: the document in result.json."""

from __future__ import annotations

import math
import signal as signals
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator

from orchestrator.core.text.clean import safe
from worker.wire.codec import reader
from worker.wire.facts import LeftProcess

# A task's name in a document. Others may have written it: it has no character that a shell, a terminal or a path gives
# a meaning to, except the colon.
TaskName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.]{0,63}(:[0-9]{1,6})?$")]
# A host as core/job/hosts.py names it.
HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_:][A-Za-z0-9_.:%-]{0,254}$")]
# Numbers in a document that others may have written can be converted and printed. The product of two 64-bit counters
# is a Whole; the limit of Seconds is far beyond any date.
Whole = Annotated[int, Field(gt=-(2**128), lt=2**128)]
Pid = Annotated[int, Field(ge=0, lt=2**31)]
Seconds = Annotated[float, Field(allow_inf_nan=False, ge=-1e12, le=1e12)]


def wired(kind: type) -> Callable[[Any], Any]:
    """The validator of a field that holds a dataclass of worker/wire: it takes one, or its JSON value."""
    made = cache(lambda: reader(kind))
    return lambda value: value if isinstance(value, kind) else made()(value)


# Processes of a run that were not ended, because they run under another user.
Left = Annotated[LeftProcess, PlainValidator(wired(LeftProcess)), PlainSerializer(vars)]
Outcome = Literal["succeeded", "failed", "stopped", "timed_out", "lost"]


class CauseKind(StrEnum):
    """The kinds of causes; beside each, the module that decides on it.

    core/lifecycle/outcome.py chooses among them for the result.
    """

    EXITED = "exited"  # a task failed by itself: diagnosis/cause.py
    STOPPED = "stopped"  # a task was suspended (SIGSTOP): diagnosis/cause.py, diagnosis/hangs.py
    STALLED = "stalled"  # --stall-timeout: diagnosis/hangs.py
    # exited with 0 while peers trained: diagnosis/cause.py if a peer failed, lifecycle/task_ends.py if all wait
    LEFT_EARLY = "left_early"
    NAN = "nan"  # --stop-on-nan: lifecycle/lifecycle.py
    NOT_DISTRIBUTED = (
        "not_distributed"  # --expect-cluster, and no task joined a cluster: diagnosis/distribution.py
    )
    # a time limit: diagnosis/hangs.py, lifecycle/outcome.py; a resource: diagnosis/shortages.py
    LIMIT = "limit"
    HOST = "host"  # a host was lost with its tasks: diagnosis/across_hosts.py
    REFUSED = "refused"  # the nodes of a queued run, or their check: cli/submitted.py, client/submitted.py
    NOTICE = "notice"  # the machines of the run will go: lifecycle/outcome.py
    # orch itself, or its agent: lifecycle/outcome.py, supervisor/serve.py; a lost run: store/runs/run_end.py
    ORCH = "orch"


class _Document(BaseModel):
    # Validators are built on first use: these models are read as parts of others.
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class Cause(_Document):
    """The cause of a failure. `task` is None if no task caused it (a time limit, orch itself). `tasks` are all tasks
    that failed with the same exception, in plan order; empty if there is only one. `host` is the one that was lost."""

    task: TaskName | None
    kind: CauseKind
    text: str
    tasks: tuple[TaskName, ...] = ()
    host: HostName | None = None

    @property
    def line(self) -> str:
        """`worker:1: exit 3`; the text alone if it names its tasks itself, or if no task caused it."""
        return self.text if self.task is None or self.tasks else f"{self.task}: {self.text}"


class FirstFailure(_Document):
    """The first task that failed, by the order of exits. `lines` are its last lines of output; `exception_file` holds
    its complete exception if the task could write it, and `place` is the user's line that led to it (`FILE:LINE`)."""

    task: TaskName
    exit_code: Whole | None
    signal: Whole | None
    exception: str | None
    log: str
    advice: str | None
    lines: tuple[str, ...] = ()
    exception_file: str | None = None
    place: str | None = None


class TaskStack(_Document):
    """The stacks of one task. `state` is the letter of the process state (man 5 proc). `frames` are those of the main
    thread, such as `file.py:12 function`; the innermost is the first. `file` holds the complete text, `length`
    bytes from `offset`. `note` says why there are no frames."""

    how: Literal["signal", "py-spy", "none"]
    state: str | None = None
    frames: tuple[str, ...] = ()
    note: str | None = None
    file: str | None = None
    offset: Whole = 0
    length: Whole = 0


class BadLoss(_Document):
    """A loss that is not a finite number, and where it was first seen (None: unknown)."""

    value: Literal["nan", "inf", "-inf"]
    epoch: Whole | None = None
    step: Whole | None = None

    @classmethod
    def of(cls, loss: float | None, epoch: int | None, step: int | None) -> Self | None:
        """None if the loss is finite or unknown."""
        if loss is None or math.isfinite(loss):
            return None
        return cls(value="nan" if math.isnan(loss) else "inf" if loss > 0 else "-inf", epoch=epoch, step=step)

    def __str__(self) -> str:
        """`nan, first seen at epoch 2 step 37`"""
        numbers = (("epoch", self.epoch), ("step", self.step))
        places = [f"{name} {number:,}" for name, number in numbers if number is not None]
        return f"{self.value}, first seen at {' '.join(places)}" if places else self.value


class TaskBadLoss(BadLoss):
    """The first such loss of a run's last attempt."""

    task: TaskName


class AttemptEnd(_Document):
    """The end of an attempt that was followed by another one. `position` is the last step reached, over all epochs;
    `resumed_at` is the step from which the next attempt resumed; `recovery_s` is the time from the failure to the next
    attempt's first step. None if unknown. `exact`: the attempt reported every step, so it has lost no more. `workers`
    and `global_batch` are as in RunResult."""

    attempt: Whole
    cause: Cause | None
    first_failure: FirstFailure | None
    exit_code: Whole
    detection_s: Seconds | None = None
    teardown_s: Seconds | None = None
    position: Whole | None = None
    resumed_at: Whole | None = None
    steps_lost: Whole | None = None
    exact: bool = True
    recovery_s: Seconds | None = None
    workers: Whole | None = None
    global_batch: Whole | None = None


class Training(_Document):
    """The last progress of the training, as the chief reported it; unknown values are None. `epoch` counts from 1."""

    epoch: Whole | None = None
    epochs: Whole | None = None
    step: Whole | None = None
    loss: float | None = None
    metrics: dict[str, float | None] = Field(default_factory=dict)


class FaultReport(_Document):
    """The effect of a planned fault, in seconds: `at_s` since the run's start (None: it was never due), the time until
    orch noticed it, until nothing of the attempt was left, and until the next attempt's first step."""

    fault: str
    task: TaskName | None = None
    at_s: Seconds | None = None
    detection_s: Seconds | None = None
    teardown_s: Seconds | None = None
    recovery_s: Seconds | None = None


# Messages name at most so many processes.
_MOST_LEFT = 8
# TaskEnd.end of a task whose failure did not end the attempt.
DONE_WITHOUT = "failed earlier; the other tasks continued"


class TaskEnd(_Document):
    """The end of a task on `host` (None: this machine). `end` says whether it ended by itself, by orch, or because of
    another task's failure. `joined`: it was seen to join a cluster of several tasks. `versions`: those of python,
    tensorflow, keras and tf_keras that its process has used, as far as it has reported them."""

    task: TaskName
    state: str
    exit_code: Whole | None
    signal: Whole | None
    restarts: Whole = 0
    end: str = ""
    joined: bool = False
    host: HostName | None = None
    versions: dict[str, str] = Field(default_factory=dict)

    def __repr__(self) -> str:
        return safe(
            f"<TaskEnd {self.task}: {self.state}, {self.end or exit_text(self.exit_code, self.signal)}>"
        )

    __str__ = __repr__


class HostEnd(_Document):
    """A host of the run at its end: joined, silent or lost, and then for what reason. `gpus` are models."""

    host: HostName
    address: str
    state: str
    cores: Whole
    memory_bytes: Whole | None = None
    gpus: tuple[str, ...] = ()
    reason: str | None = None


class RunResult(_Document):
    """The document in result.json. Durations are seconds.

    detection_s: from the first failure's exit to its notice
    teardown_s: from then until no process was left
    took_s: from the run's start until then
    earlier_attempts: the attempts before the last one; `history` in the document
    stacks: the tasks' stacks when a time limit ran out
    not_restarted: why a failure was not followed by a restart
    bad_loss: the first loss that was not finite
    not_distributed: the tasks trained, and none of them joined a cluster
    left: processes that are still running
    hosts: the hosts; empty if all tasks ran on this machine
    workers, global_batch: of the last attempt; the examples in a step of all workers, if a task has reported them
    """

    model_config = ConfigDict(serialize_by_alias=True, defer_build=True)

    schema_version: Literal[1] = 1
    run_id: str
    outcome: Outcome
    exit_code: Whole
    attempts: Whole
    cause: Cause | None
    first_failure: FirstFailure | None
    detection_s: Seconds | None
    teardown_s: Seconds | None
    took_s: Seconds | None = None
    tasks: tuple[TaskEnd, ...]
    checkpoint_dir: str | None = None
    training: Training | None = None
    earlier_attempts: tuple[AttemptEnd, ...] = Field(default=(), alias="history")
    faults: tuple[FaultReport, ...] = ()
    stacks: dict[TaskName, TaskStack] = Field(default_factory=dict)
    not_restarted: str | None = None
    bad_loss: TaskBadLoss | None = None
    not_distributed: str | None = None
    left: tuple[Left, ...] = ()
    hosts: tuple[HostEnd, ...] = ()
    workers: Whole | None = None
    global_batch: Whole | None = None

    def __repr__(self) -> str:
        cause = "" if self.cause is None else f"; {self.cause.line}"
        return safe(f"<RunResult {self.run_id}: {self.outcome}, exit code {self.exit_code}{cause}>")

    __str__ = __repr__

    @property
    def succeeded(self) -> bool:
        return self.outcome == "succeeded"

    def history(self) -> dict[str, list[Any]]:
        """Progress, CPU and memory of all tasks over time, as columns: `pandas.DataFrame(result.history())`.

        The same as Run.history(). Raises LookupError if the result is not that of Run.wait() or of an error: a document
        does not know its run's directory.
        """
        raise LookupError(
            f"a document has no history; orchestrator.history({self.run_id!r}) returns that of the run"
        )


def left_text(left: Sequence[LeftProcess]) -> str:
    """Return the message about processes that are left: `orch may not end pid 71 (user nobody: sleep 600)`."""
    named = [f"pid {each.pid} (user {each.user}: {each.command})" for each in left[:_MOST_LEFT]]
    more = [f"{len(left) - _MOST_LEFT} more"] if len(left) > _MOST_LEFT else []
    return f"orch may not end {', '.join(named + more)}"


def left_advice(left: Sequence[LeftProcess]) -> str:
    return f"End them as their user or as root: kill -KILL {' '.join(str(each.pid) for each in left[:_MOST_LEFT])}"


def exit_text(exit_code: int | None, signal: int | None) -> str:
    """Return the end of a process as text: `exit 3`, `SIGKILL`."""
    if signal is not None:
        return signal_name(signal)
    return "still running" if exit_code is None else f"exit {exit_code}"


def signal_name(signal: int) -> str:
    try:
        return signals.Signals(signal).name
    except ValueError:
        return f"signal {signal}"


def shell_code(exit_code: int | None, signal: int | None) -> int:
    """Return the exit code that a shell shows: the code itself, or 128 + the signal."""
    if signal is not None:
        return 128 + signal
    return exit_code or 0
