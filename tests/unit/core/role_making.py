"""Short builders for the events of a run with roles, whose tasks are given by name."""

from __future__ import annotations

import signal as signals

from event_making import START, emptied, feed, lifecycle_of, the_result
from job_making import JOB, changed, policies

from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.state import events
from orchestrator.core.state.events import Symptom
from orchestrator.core.state.result import RunResult

PS_CLUSTER = ("chief:0", "worker:0", "worker:1", "ps:0")
# The defaults of the settings.
PS_JOB = changed(
    JOB,
    evaluator_timeout_s=600.0,
    role_settings=policies({"worker": FailurePolicy.RESTART_TASK, "evaluator": FailurePolicy.RESTART_TASK}),
)
PLAIN_JOB = changed(PS_JOB, role_settings=policies({"evaluator": FailurePolicy.RESTART_TASK}))
WITH_EVALUATOR = (*PS_CLUSTER, "evaluator:0")
TWO_AND_EVALUATOR = ("worker:0", "worker:1", "evaluator:0")


def planned(names: tuple[str, ...], *, serves: bool = True, mono: float = START) -> events.AttemptPlanned:
    plans = tuple(
        events.PlannedTask(
            task=name,
            role=name.partition(":")[0],
            index=int(name.partition(":")[2]),
            address=f"127.0.0.1:{20000 + at}",
            argv=("true",),
            cwd="/",
            env={},
            log=f"/logs/{name}.log",
            serves=serves and not name.startswith("evaluator"),
        )
        for at, name in enumerate(names)
    )
    return events.AttemptPlanned(at=mono, mono=mono, attempt=1, tasks=plans)


def begun(name: str, mono: float = START) -> list[events.Event]:
    """The events of a task that starts and gets ready."""
    return [
        events.TaskStarted(at=mono, mono=mono, task=name, pid=100, start_ticks=7),
        events.TaskReady(at=mono, mono=mono, task=name),
    ]


def at_work(spec: JobSpec, names: tuple[str, ...] = PS_CLUSTER, *, serves: bool = True) -> Lifecycle:
    """A lifecycle whose tasks are all running and have reported no progress."""
    lifecycle = lifecycle_of(spec)
    for event in (planned(names, serves=serves), *(event for name in names for event in begun(name))):
        lifecycle.handle(event)
    return lifecycle


def exits(
    name: str,
    code: int | None = 0,
    signal: int | None = None,
    order: int = 0,
    mono: float = START,
    symptom: Symptom | None = None,
) -> events.TaskExited:
    return events.TaskExited(
        at=mono,
        mono=mono,
        task=name,
        exit_code=None if signal else code,
        signal=signal,
        order=order,
        symptom=symptom,
    )


def tells(name: str, phase: str, step: int | None = None, mono: float = START) -> events.TaskProgressed:
    progress = events.Progress(phase=phase, step=step)
    return events.TaskProgressed(at=mono, mono=mono, task=name, progress=progress)


def training(spec: JobSpec = PS_JOB, names: tuple[str, ...] = PS_CLUSTER) -> Lifecycle:
    lifecycle = at_work(spec, names)
    servants = [name for name in names if name.startswith(("ps", "worker"))]
    feed(lifecycle, [*(tells(name, "serving") for name in servants), tells("chief:0", "training", 3)])
    return lifecycle


def ended(lifecycle: Lifecycle, *stopped: str, mono: float = START + 9) -> RunResult:
    """The result after a teardown in which SIGTERM killed these tasks."""
    events = [exits(name, None, signals.SIGTERM, 9, mono) for name in stopped]
    return the_result(feed(lifecycle, [*events, emptied(mono)]))


def ends_of(result: RunResult) -> dict[str, tuple[str, str]]:
    return {task.task: (task.state, task.end) for task in result.tasks}
