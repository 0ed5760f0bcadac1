"""Values that tests need without a run: jobs, commands, plans, events and results. Each field has a plain default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.core.errors import ExitCode
from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.job.hosts import parse_hosts
from orchestrator.core.job.spec import Command, CommandKind, JobSpec, RoleSettings
from orchestrator.core.state import events
from orchestrator.core.state.events import Event, PlannedTask, Symptom, SymptomKind
from orchestrator.core.state.fold import apply
from orchestrator.core.state.result import (
    AttemptEnd,
    Cause,
    CauseKind,
    FirstFailure,
    Outcome,
    RunResult,
    TaskEnd,
    TaskStack,
)
from orchestrator.core.state.state import RunState
from worker.wire.facts import ExitFacts

RUN_ID = "run-1"
# Monotonic seconds at which a run starts.
START = 1000.0
OWN = Symptom(kind=SymptomKind.OWN, exception="ValueError: boom", lines=("ValueError: boom",))
COLLATERAL = Symptom(kind=SymptomKind.COLLATERAL, exception="UnavailableError: Socket closed")
UNKNOWN = Symptom(kind=SymptomKind.UNKNOWN)
# Stacks of a task that runs, of one that waits for its peers in TensorFlow, and of one that SIGSTOP has stopped.
AT_WORK = TaskStack(how="signal", state="S", frames=("train.py:31 load_data",))
IN_TENSORFLOW = TaskStack(
    how="signal", state="S", frames=("tensorflow/python/eager/execute.py:53 quick_execute", "train.py:9 main")
)
STOPPED = TaskStack(how="none", state="T", note="stopped")
_EXIT_CODES: dict[Outcome, int] = {
    "succeeded": ExitCode.OK,
    "failed": 1,
    "stopped": ExitCode.TERMINATED,
    "timed_out": ExitCode.TIMED_OUT,
    "lost": ExitCode.ORCH,
}
_E = TypeVar("_E", bound=Event)


def command(*argv: str, **fields: Any) -> Command:
    """A command that is not a script, without words `true`."""
    argv = argv or ("true",)
    return Command(**{"kind": CommandKind.EXECUTABLE, "words": argv, "argv": argv, "serves": True} | fields)


def script(*words: str, python: str = "/opt/python") -> Command:
    """`orch up train.py`, or these words."""
    words = words or ("train.py",)
    return command(python, *words, kind=CommandKind.SCRIPT, words=words, interpreter=(python,))


# A job that starts nothing and has no time limits.
JOB = JobSpec(
    roles={"worker": 2},
    name="run",
    command=command(),
    directory=Path("/"),
    cwd=Path("/"),
    grace_s=10.0,
    failure_grace_s=0.5,
    start_timeout_s=None,
    silence_notice_s=None,
    evaluator_timeout_s=None,
)


def changed(spec: JobSpec, **fields: Any) -> JobSpec:
    """The job with other fields, which are not checked."""
    return spec.model_copy(update=fields)


def job(**fields: Any) -> JobSpec:
    """JOB with other fields. `workers`: how many; `hosts`: such as `a:2,b:2`."""
    if "workers" in fields:
        fields["roles"] = {"worker": fields.pop("workers")}
    if isinstance(fields.get("hosts"), str):
        fields["hosts"] = parse_hosts(fields["hosts"])
    return changed(JOB, **fields)


def policies(by_role: Mapping[str, FailurePolicy]) -> dict[str, RoleSettings]:
    """The `role_settings` of a job whose roles have these failure policies."""
    return {role: RoleSettings(on_failure=policy) for role, policy in by_role.items()}


def worker(task: int | str) -> str:
    """`worker:1` for 1; a name as it is."""
    return task if isinstance(task, str) else f"worker:{task}"


def planned_task(task: int | str = 0, **fields: Any) -> PlannedTask:
    """A task in the plan of an attempt."""
    name = worker(task)
    role, _, index = name.partition(":")
    defaults: dict[str, Any] = {
        "task": name,
        "role": role,
        "index": int(index),
        "address": f"127.0.0.1:{20000 + int(index)}",
        "argv": ("true",),
        "cwd": "/",
        "env": {},
        "log": f"/logs/{role}-{index}.log",
        "serves": role != "evaluator",
    }
    return PlannedTask(**defaults | fields)


def event(kind: type[_E], mono: float = START, **fields: Any) -> _E:
    """An event at this time of both clocks. A task may be a number: 1 is worker:1."""
    if "task" in fields:
        fields["task"] = worker(fields["task"])
    return kind(**{"at": mono, "mono": mono} | fields)


def attempt_planned(
    tasks: int | Sequence[str | PlannedTask] = 2, number: int = 1, mono: float = START, **fields: Any
) -> events.AttemptPlanned:
    """The plan of an attempt. `tasks`: so many workers, or names, or plans; `fields`: of each planned task."""
    named = range(tasks) if isinstance(tasks, int) else tasks
    plans = (each if isinstance(each, PlannedTask) else planned_task(each, **fields) for each in named)
    return event(events.AttemptPlanned, mono, attempt=number, tasks=tuple(plans))


def started(task: int | str = 0, mono: float = START, **fields: Any) -> events.TaskStarted:
    number = int(worker(task).rpartition(":")[2])
    return event(events.TaskStarted, mono, **{"task": task, "pid": 100 + number, "start_ticks": 7} | fields)


def exited(
    task: int | str = 0, code: int | None = 0, signal: int | None = None, mono: float = START, **fields: Any
) -> events.TaskExited:
    """The exit of a task that the agent had signalled. `ended_mono`: the time of the exit, if it was noticed later."""
    own = {name: fields.pop(name) for name in ("order", "symptom", "peer_symptoms") if name in fields}
    ended_mono = fields.pop("ended_mono", mono)
    exit_code = code if signal is None else None
    facts = ExitFacts(exit_code, signal, ended_mono, **{"asked": True} | fields)
    return event(events.TaskExited, mono, **{"task": task, "order": 0} | own, exit=facts)


def not_started(task: int | str = 0, mono: float = START, **fields: Any) -> events.TaskExited:
    """A task that could not be started, because its command does not exist."""
    return exited(task, 127, mono=mono, **{"start_error": "nope: no such file", "asked": False} | fields)


def ready(task: int | str = 0, mono: float = START) -> events.TaskReady:
    return event(events.TaskReady, mono, task=task)


def progressed(task: int | str = 0, mono: float = START, **fields: Any) -> events.TaskProgressed:
    """A report of progress with these fields; a step alone is one of the training."""
    if "step" in fields:
        fields.setdefault("phase", "training")
    return event(events.TaskProgressed, mono, task=task, progress=events.Progress.model_validate(fields))


def joined(host: str = "a", mono: float = START, **fields: Any) -> events.HostJoined:
    """A host with 8 cores and a GPU serves the run."""
    defaults: dict[str, Any] = {"address": "10.0.0.1", "cores": 8, "memory_bytes": 1 << 34, "gpus": ("A100",)}
    return event(events.HostJoined, mono, host=host, **defaults | fields)


def state_of(*history: Event) -> RunState:
    """The state after these events."""
    return reduce(apply, history, RunState())


def cause(
    task: int | str | None = 1, text: str = "exit 1", kind: CauseKind = CauseKind.EXITED, **fields: Any
) -> Cause:
    return Cause(task=None if task is None else worker(task), kind=kind, text=text, **fields)


def first_failure(
    task: int | str = 1, code: int | None = 1, signal: int | None = None, **fields: Any
) -> FirstFailure:
    defaults: dict[str, Any] = {"exception": None, "log": "/log", "advice": None}
    code = code if signal is None else None
    return FirstFailure(task=worker(task), exit_code=code, signal=signal, **defaults | fields)


def task_end(
    task: int | str = 0, state: str = "succeeded", code: int | None = None, **fields: Any
) -> TaskEnd:
    """The end of a task. Without a code or signal the code is 1 if it failed, 0 if it succeeded."""
    if code is None and "signal" not in fields:
        code = {"succeeded": 0, "failed": 1}.get(state)
    return TaskEnd(task=worker(task), state=state, exit_code=code, **{"signal": None} | fields)


def attempt_end(number: int = 1, code: int = 1, **fields: Any) -> AttemptEnd:
    defaults: dict[str, Any] = {"cause": None, "first_failure": None}
    return AttemptEnd(attempt=number, exit_code=code, **defaults | fields)


def run_result(
    outcome: Outcome = "succeeded", *tasks: TaskEnd, history: Iterable[AttemptEnd] = (), **fields: Any
) -> RunResult:
    """The result of a run with these tasks, and the exit code that belongs to the outcome."""
    earlier = tuple(history)
    defaults: dict[str, Any] = {
        "run_id": RUN_ID,
        "exit_code": _EXIT_CODES[outcome],
        "attempts": len(earlier) + 1,
        "cause": None,
        "first_failure": None,
        "detection_s": None,
        "teardown_s": None,
    }
    return RunResult(outcome=outcome, tasks=tasks, history=earlier, **defaults | fields)
