"""A cell of the matrix: a fault, its moment, how the run must end, and the kinds of its failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from orchestrator.core.state.result import CauseKind, Outcome, RunResult

if TYPE_CHECKING:
    from scene import Scene


class Moment(StrEnum):
    """How far the run is when the fault is injected."""

    JUST_STARTED = "just started"  # orch may not have started anything yet
    BEFORE_SPAWN = "before spawn"  # the ports are held, and the tasks wait for the preloader
    IMPORTING = "importing"  # the tasks run and do not listen yet
    RENDEZVOUS = "rendezvous"  # all listen but the victim
    TRAINING = "training"  # all are ready and have reported steps
    CHECKPOINTING = "checkpointing"  # the chief has written half a checkpoint
    FINISHING = "finishing"  # all have exited but the victim
    STOPPING = "stopping"  # asked to stop, the tasks take their time
    BACKOFF = "backoff"  # between two attempts
    BETWEEN = "between two runs"  # the kept processes wait for the next run


class Who(StrEnum):
    """The processes that a fault may hit."""

    VICTIM = "victim"
    PEERS = "peers"
    AGENT = "agent"
    SUPERVISOR = "supervisor"
    CLIENT = "client"
    PRELOADER = "preloader"


class Way(StrEnum):
    """How the run and its tasks start."""

    COLD = "cold"  # all processes are new
    FORKED = "forked"  # the tasks are forked from the preloader
    KEPT = "kept"  # the processes are those that an earlier run left (--warm)
    TERMINAL = "terminal"  # `orch up` in the foreground of a terminal
    TENSORFLOW = "tensorflow"  # the example of orch


Culprit = Literal[Who.VICTIM, Who.PEERS]
Injection = Callable[["Scene"], None]
Check = Callable[["Scene", RunResult], None]


@dataclass(frozen=True)
class Ends:
    """How a run must end. `cause` and `first`: the victim, its peers, or no task (None). `kind` None: no cause."""

    outcome: Outcome
    exit_code: int
    cause: Culprit | None = None
    kind: CauseKind | None = None
    first: Culprit | None = None
    attempts: int = 1

    def __str__(self) -> str:
        words = f"{self.outcome}, {self.exit_code}"
        if self.kind is not None:
            words += f"; cause: {self.cause or 'none of the tasks'}, {self.kind}"
        if self.attempts > 1:
            words += f"; attempt {self.attempts}"
        return words


def failed(
    code: int,
    cause: Culprit | None = Who.VICTIM,
    kind: CauseKind = CauseKind.EXITED,
    first: Culprit | None = Who.VICTIM,
    attempts: int = 1,
) -> Ends:
    return Ends("failed", code, cause, kind, first, attempts)


def timed_out(cause: Culprit | None, kind: CauseKind) -> Ends:
    return Ends("timed_out", 124, cause, kind)


def succeeded(attempts: int = 1) -> Ends:
    return Ends("succeeded", 0, attempts=attempts)


def stopped(code: int = 143, attempts: int = 1) -> Ends:
    return Ends("stopped", code, attempts=attempts)


ORCH_FAILED = failed(125, None, CauseKind.ORCH, None)
NO_STORAGE = failed(125, None, CauseKind.LIMIT, None)
LOST = Ends("lost", 125, None, CauseKind.ORCH)


@dataclass(frozen=True)
class Cell:
    """One fault at one moment, and how the run must end.

    `expect`: None if the fault comes between two runs. `or_ends`: other allowed ends, where the order of events is
    open. `serves`: whether the same kept processes serve the next run; None: either. `breaks`: what the tasks do
    themselves, `inject`: what is done from outside. `times`: at how many visits of the moment a task breaks.
    """

    fault: str
    moment: Moment
    expect: Ends | None
    way: Way = Way.COLD
    gate: bool = False
    breaks: str = "nothing"
    inject: Injection = lambda _: None
    victim: int = 1
    workers: int = 2
    times: int = 1
    options: Mapping[str, object] = field(default_factory=dict)
    or_ends: tuple[Ends, ...] = ()
    serves: bool | None = None
    check: Check | None = None

    @property
    def name(self) -> str:
        way = "" if self.way is Way.COLD else f" | {self.way}"
        return f"{self.fault} | {self.moment}{way}"

    @property
    def as_command(self) -> bool:
        """Whether a foreground `orch up` starts the run, instead of this process."""
        return self.way is Way.TERMINAL or "client" in self.fault or "Ctrl-C" in self.fault or self.vanishes

    @property
    def client_code(self) -> int | None:
        """The exit code of that `orch up`."""
        assert self.expect is not None
        return -9 if "SIGKILL of the client" in self.fault else self.expect.exit_code

    @property
    def vanishes(self) -> bool:
        """Whether the run's directory is removed."""
        return self.fault == "the run's directory is removed"

    @property
    def needs_disk(self) -> bool:
        """Whether the cell needs mounts of its own, with all of orch's files on a small disk."""
        return self.fault.startswith(("the disk is full", "all processes of the machine wait"))


class Kind(StrEnum):
    """The kind of a failure; the values name the rows of a soak report."""

    HANG = "hangs"  # an expected event did not happen
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


class CellFailure(AssertionError):
    """The run violated one expectation."""

    def __init__(self, kind: Kind, text: object) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class NotAvailable(Exception):
    """This machine cannot run the cell; the message says why."""


def require(condition: object, kind: Kind, text: object) -> None:
    """CellFailure of that kind unless `condition` holds."""
    if not condition:
        raise CellFailure(kind, text)
