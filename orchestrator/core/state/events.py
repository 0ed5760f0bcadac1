"""The events of a run, as they are stored in events.jsonl.

`at` is wall-clock time (Unix seconds) for people. `mono` is CLOCK_MONOTONIC (seconds since boot); durations are
computed from it, so that a clock set back cannot make one negative.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, TypeAdapter

from orchestrator.core.state.result import (
    AttemptEnd,
    BadLoss,
    HostName,
    Left,
    Pid,
    Seconds,
    TaskName,
    TaskStack,
    Whole,
    wired,
)
from worker.wire.facts import ExitFacts, StartMethod


class _Frozen(BaseModel):
    # Unknown keys are ignored, so that events of a newer minor version can be read. The validator of a single class is
    # built on first use: reading needs only the one of all events below.
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


# A task can report any number; a counter fits into 64 bits.
_Count = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class FitSteps(_Frozen):
    """The training steps of Keras's `fit` in a process: `done` of them, over all epochs and fits, after `start` of
    earlier processes, None if unknown. `skips`: more may have been done since."""

    done: _Count
    start: _Count | None = None
    skips: bool = False


class Debugger(_Frozen):
    """A debugger in a task. `listening` at `port` of 127.0.0.1, and the task runs; `waiting` there for its client;
    `attached`: the client is there. `post_mortem`: pdb reads from the user's terminal after a failure."""

    state: Literal["listening", "waiting", "attached", "post_mortem"]
    port: Annotated[int, Field(ge=1, le=65535)] | None = None

    @property
    def is_used(self) -> bool:
        """Whether a person debugs the task, or is expected to."""
        return self.state != "listening"


class Progress(_Frozen):
    """The progress that a task reports; unknown fields are None. `epoch` counts from 1. `start_step` is the number of
    steps, over all epochs, that were done before this process's first one: more than 0 if it resumed. `loss` is finite;
    `bad_loss` is set instead of it while it is not. `global_batch`: examples in a step of all workers.

    The bootstrap reports the rest: `server` is the address of the TensorFlow server that the task has started,
    `cluster` the number of tasks in the cluster that it has joined, `trains` that it has computed a gradient, `fit` its
    steps in Keras's `fit`, `debugger` the debugger in it. `skips`: it may do steps that are not in `step`."""

    phase: str | None = None
    epoch: _Count | None = None
    epochs: _Count | None = None
    step: _Count | None = None
    steps: _Count | None = None
    loss: float | None = None
    bad_loss: BadLoss | None = None
    metrics: dict[str, float | None] = Field(default_factory=dict)
    steps_per_s: float | None = None
    examples_per_s: float | None = None
    start_step: _Count | None = None
    global_batch: _Count | None = None
    server: str | None = None
    cluster: _Count | None = None
    trains: bool | None = None
    fit: FitSteps | None = None
    skips: bool | None = None
    debugger: Debugger | None = None


class StopReason(StrEnum):
    """Why a run is stopped before its tasks are done."""

    INTERRUPT = "interrupt"  # the user's Ctrl-C
    TERMINATE = "terminate"  # SIGTERM to the client or the supervisor
    HANGUP = "hangup"  # the terminal was closed
    DOWN = "down"  # orch down, or the API
    CLIENT_GONE = "client_gone"  # the foreground client was killed
    OUTPUT_CLOSED = "output_closed"  # the reader of the client's output closed it
    TIMEOUT = "timeout"  # --timeout
    SOURCE_CHANGED = "source_changed"  # --watch: the client starts the next run


class NoticeSource(StrEnum):
    """The origin of a notice that the machines of the run will go."""

    USER = "user"  # orch notice, or the API
    SIGNAL = "signal"  # SIGUSR2 to `orch up` or the supervisor
    SLURM = "slurm"  # Slurm ends the steps of the run
    TIME_LIMIT = "time_limit"  # the allocation ends in --notice


# The stop reason of each signal to the client.
STOP_SIGNALS = {
    signal.SIGINT: StopReason.INTERRUPT,
    signal.SIGTERM: StopReason.TERMINATE,
    signal.SIGHUP: StopReason.HANGUP,
}


class TeardownReason(StrEnum):
    """Why orch ended the processes of an attempt."""

    FINISHED = "finished"  # all tasks succeeded; only leftovers are ended
    FAILURE = "failure"
    LIMIT = "limit"  # a time limit ran out, and a task is the cause
    RESTART = "restart"  # `orch restart`
    REQUEST = "request"  # a StopReason
    NOTICE = "notice"  # a NoticeSource


class SymptomKind(StrEnum):
    """The origin of a failure, by the last output of the failed task."""

    OWN = "own"  # its own exception
    COLLATERAL = "collateral"  # it lost a peer
    UNKNOWN = "unknown"


class Symptom(_Frozen):
    """The classified last output of a failed task. `exception` is the last line of its traceback, `place` the user's
    line that led to it (`FILE:LINE`), `lines` its last lines. `exception_file` holds the complete exception with its
    causes, as the task itself wrote it. `raised_mono` is when that was, on this machine's monotonic clock."""

    kind: SymptomKind
    exception: str | None = None
    place: str | None = None
    exception_file: str | None = None
    advice: str | None = None
    lines: tuple[str, ...] = ()
    raised_mono: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTask:
    """A task as planned for an attempt, with secrets masked. `env` is without TF_CONFIG, except in an older file.
    `host` is None on this machine; `log` is a path on this machine. `interactive`: it has the user's terminal."""

    task: TaskName
    role: str
    index: Whole
    address: str | None
    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    log: str
    serves: bool
    host: HostName | None = None
    interactive: bool = False


class _Event(_Frozen):
    at: Seconds
    mono: Seconds


class AttemptPlanned(_Event):
    """`cluster` holds the addresses by role, in index order, of which each task's TF_CONFIG is made; empty in an older
    file."""

    type: Literal["attempt_planned"] = "attempt_planned"
    attempt: Whole
    tasks: tuple[PlannedTask, ...]
    cluster: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class Preload(_Event):
    """The preloader imports `modules`, so that tasks can be forked from it, or has done so in `seconds`: 0 if it did so
    for an earlier run. `refused`: why tasks are spawned instead."""

    type: Literal["preload"] = "preload"
    modules: tuple[str, ...] = ()
    seconds: Seconds | None = None
    refused: str | None = None


class TaskStarted(_Event):
    """`start_ticks` is the start time of the process (clock ticks since boot), unique together with the pid.

    `method`: a new interpreter process, or a fork of the preloader."""

    type: Literal["task_started"] = "task_started"
    task: TaskName
    pid: Pid
    start_ticks: Whole
    method: StartMethod = "spawn"


class TaskReady(_Event):
    """A process of the task listens on its port, or the task has no port."""

    type: Literal["task_ready"] = "task_ready"
    task: TaskName


class TaskProgressed(_Event):
    type: Literal["task_progressed"] = "task_progressed"
    task: TaskName
    progress: Progress


class VersionsFound(_Event):
    """The versions in a task's process: of `python`, and of `tensorflow`, `keras` and `tf_keras` once it has imported
    them."""

    type: Literal["versions_found"] = "versions_found"
    task: TaskName
    versions: dict[str, str]


class CheckpointSaved(_Event):
    """A task has saved the checkpoint or model `name`, which took `seconds`. Very many saves are not all recorded."""

    type: Literal["checkpoint_saved"] = "checkpoint_saved"
    task: TaskName
    name: str
    seconds: Seconds


class TaskExited(_Event):
    """A task has exited, or could not be started. `order` counts the exits on all hosts. `peer_symptoms` is set at the
    first bad exit if the task says that it lost a peer: the exceptions that other tasks had raised before they got a
    signal."""

    type: Literal["task_exited"] = "task_exited"
    task: TaskName
    exit: Annotated[ExitFacts, PlainValidator(wired(ExitFacts)), PlainSerializer(vars)]
    order: Whole
    symptom: Symptom | None = None
    peer_symptoms: dict[TaskName, Symptom] = Field(default_factory=dict)

    @property
    def noticed_s(self) -> float:
        """Seconds from the exit until the supervisor noticed it."""
        return max(0.0, self.mono - self.exit.mono)


class DiskFull(_Event):
    """A disk that a failed task writes to is full. `reason` is the directory and the system's error text."""

    type: Literal["disk_full"] = "disk_full"
    task: TaskName
    reason: str


class StopRequested(_Event):
    type: Literal["stop_requested"] = "stop_requested"
    reason: StopReason
    force: bool = False


class NoticeGiven(_Event):
    """The machines of the run will go in `left_s` seconds (None: unknown). Its tasks save their state and end."""

    type: Literal["notice_given"] = "notice_given"
    source: NoticeSource
    left_s: Seconds | None = None


class DeadlineReached(_Event):
    """A deadline of the lifecycle has passed. For a silence, `quiet_s` is the time since each live task's last
    output or progress, and `busy` are the tasks that use the processor. For a notice, `left_s` is the time until the
    allocation ends (None: unknown)."""

    type: Literal["deadline_reached"] = "deadline_reached"
    deadline: str
    quiet_s: dict[TaskName, Seconds] = Field(default_factory=dict)
    busy: tuple[TaskName, ...] = ()
    left_s: Seconds | None = None


class RestartRequested(_Event):
    """A user asked for another attempt (`orch restart`)."""

    type: Literal["restart_requested"] = "restart_requested"


class RestartPlanned(_Event):
    """Attempt `ended.attempt` is over and nothing of it is left. The next one starts in `delay_s` seconds."""

    type: Literal["restart_planned"] = "restart_planned"
    ended: AttemptEnd
    delay_s: Seconds


class TaskRestartPlanned(_Event):
    """A failed task is restarted in `delay_s` seconds on the same port, while the others run on."""

    type: Literal["task_restart_planned"] = "task_restart_planned"
    task: TaskName
    delay_s: Seconds
    text: str


class Resumed(_Event):
    """The first step of a later attempt. `position` is the number of steps done before it, over all epochs;
    `steps_lost` is the number of steps that are repeated; unless `exact`, more may have been done and not reported."""

    type: Literal["resumed"] = "resumed"
    attempt: Whole
    position: Whole | None
    steps_lost: Whole | None
    exact: bool = True
    recovery_s: Seconds


# Origin of a signal: a user (`orch kill`), or a planned fault.
SignalSource = Literal["user", "chaos"]


class SignalRequested(_Event):
    """`signal` is sent to the task's process group. `fault` is the index of a planned fault and `text` its wording."""

    type: Literal["signal_requested"] = "signal_requested"
    task: TaskName
    signal: Whole
    by: SignalSource
    fault: Whole | None = None
    text: str | None = None


class StacksTaken(_Event):
    """The stacks of the tasks. `why` is the deadline that asked for them, or BY_USER."""

    BY_USER: ClassVar[str] = "user"

    type: Literal["stacks_taken"] = "stacks_taken"
    why: str
    stacks: dict[TaskName, TaskStack]


class StorageFailed(_Event):
    """A file of the run cannot be written."""

    type: Literal["storage_failed"] = "storage_failed"
    reason: str


class AgentLost(_Event):
    type: Literal["agent_lost"] = "agent_lost"
    reason: str


class JobStarted(_Event):
    """The nodes are there, and a supervisor has the run."""

    type: Literal["job_started"] = "job_started"
    job: str


class HostJoined(_Event):
    """The agent of a host serves the run. `address` is its IP address, `gpus` are the names of their models.
    `clock_offset_s` is added to a time of its monotonic clock to have one of this machine's, within `clock_error_s`."""

    type: Literal["host_joined"] = "host_joined"
    host: HostName
    address: str
    cores: Whole
    memory_bytes: Whole | None = None
    gpus: tuple[str, ...] = ()
    python: str = ""
    clock_offset_s: Seconds = 0.0
    clock_error_s: Seconds = 0.0


class HostSilent(_Event):
    """A host has not answered for `seconds`. It may answer again, or be lost."""

    type: Literal["host_silent"] = "host_silent"
    host: HostName
    seconds: Seconds


class HostBack(_Event):
    """A host answers again, after `seconds`."""

    type: Literal["host_back"] = "host_back"
    host: HostName
    seconds: Seconds


class HostLost(_Event):
    """A host is lost with all its tasks: it has not answered for --link-timeout, or its agent has ended."""

    type: Literal["host_lost"] = "host_lost"
    host: HostName
    reason: str


class TeardownBegan(_Event):
    type: Literal["teardown_began"] = "teardown_began"
    reason: TeardownReason
    grace_s: Seconds


class TeardownEnded(_Event):
    """No process of the attempt is left, but for those in `left`, which run under another user.

    `swept` counts processes that were ended besides the tasks.
    """

    type: Literal["teardown_ended"] = "teardown_ended"
    swept: Whole = 0
    left: tuple[Left, ...] = ()


class Noticed(_Event):
    """A message to the user; `verbose` messages are shown under `-v` only. `nan_in`: the task whose loss is not finite,
    the first one of the attempt."""

    type: Literal["noticed"] = "noticed"
    text: str
    verbose: bool = False
    nan_in: TaskName | None = None


class TensorBoardServes(_Event):
    """The address of the run's TensorBoard; None when it has stopped."""

    type: Literal["tensorboard_serves"] = "tensorboard_serves"
    url: str | None


class RunEndedEvent(_Event):
    type: Literal["run_ended"] = "run_ended"
    outcome: str
    exit_code: Whole


Event = (
    AttemptPlanned
    | Preload
    | TaskStarted
    | TaskReady
    | TaskProgressed
    | VersionsFound
    | CheckpointSaved
    | TaskExited
    | DiskFull
    | StopRequested
    | NoticeGiven
    | RestartRequested
    | RestartPlanned
    | TaskRestartPlanned
    | Resumed
    | SignalRequested
    | StacksTaken
    | StorageFailed
    | DeadlineReached
    | AgentLost
    | JobStarted
    | HostJoined
    | HostSilent
    | HostBack
    | HostLost
    | TeardownBegan
    | TeardownEnded
    | Noticed
    | TensorBoardServes
    | RunEndedEvent
)

_ADAPTER: TypeAdapter[Event] = TypeAdapter(
    Annotated[Event, Field(discriminator="type")], config=ConfigDict(defer_build=True)
)


def parse_event(line: str | bytes) -> Event:
    """Parse one line of events.jsonl. Raises pydantic's ValueError if it is not an event."""
    return _ADAPTER.validate_json(line)


def event_line(event: Event) -> bytes:
    """Return the event as one line of events.jsonl with its newline."""
    return event.model_dump_json(exclude_defaults=False).encode() + b"\n"
