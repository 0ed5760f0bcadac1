"""The actions that the lifecycle asks the supervisor for, and the names of its deadlines."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.core.job.spec import JobSpec
from orchestrator.core.state.events import Event, TeardownReason
from orchestrator.core.state.result import RunResult


@dataclass(frozen=True)
class StartTasks:
    tasks: tuple[str, ...]


@dataclass(frozen=True)
class PlanAttempt:
    """Hold ports for another attempt. Answered by AttemptPlanned. `job` is that of an elastic run, with the workers and
    hosts of this attempt; None: all hosts of the run, once they are there."""

    attempt: int
    job: JobSpec | None = None


@dataclass(frozen=True)
class ReopenHosts:
    """Try again to reach the hosts that were lost. Answered by HostJoined for those that are back."""


@dataclass(frozen=True)
class StartTask:
    """Start one task of the current attempt again, with the same plan."""

    task: str


@dataclass(frozen=True)
class SendSignal:
    """Send `signal` to the process group of a live task."""

    task: str
    signal: int


@dataclass(frozen=True)
class TakeStacks:
    """Collect the stacks of all live tasks. Answered within seconds by StacksTaken(why), complete or not."""

    why: str


@dataclass(frozen=True)
class TearDown:
    """Stop every process of the attempt: SIGTERM now, SIGKILL after `grace_s`. Answered by TeardownEnded."""

    reason: TeardownReason
    grace_s: float


@dataclass(frozen=True)
class SweepHost:
    """Kill what is left of the run without the agent, which is lost. Answered by TeardownEnded."""


@dataclass(frozen=True)
class Happen:
    """Append an event, which follows from the one just handled, to the queue."""

    event: Event


@dataclass(frozen=True)
class Finish:
    result: RunResult


Action = (
    StartTasks
    | PlanAttempt
    | ReopenHosts
    | StartTask
    | SendSignal
    | TakeStacks
    | TearDown
    | SweepHost
    | Happen
    | Finish
)


class Deadline(StrEnum):
    """The subjects of DeadlineReached events."""

    TIMEOUT = "timeout"
    NOTICE = "notice"
    START_LATE = "start_late"
    START_LIMIT = "start_limit"
    STALL_LIMIT = "stall_limit"
    SILENCE = "silence"
    HOSTS = "hosts"
    HOSTS_AWAITED = "hosts_awaited"
    HOSTS_RETRY = "hosts_retry"
    PLAN = "plan"
    RESTART = "restart"
    TASK_RESTART = "task_restart"
    CHAOS = "chaos"
    EVALUATOR = "evaluator"
    TEARDOWN = "teardown"
