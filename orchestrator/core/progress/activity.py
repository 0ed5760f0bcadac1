"""The activity of each task as text, and which tasks wait for which others at the start."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from orchestrator.core.job.tf_config import CHIEF, EVALUATOR, PS, WORKER
from orchestrator.core.state.changes import Matching
from orchestrator.core.state.events import Progress
from orchestrator.core.state.position import BESIDE_TRAINING, Course, position
from orchestrator.core.state.result import Training
from orchestrator.core.state.state import RunState, TaskPhase, TaskState
from orchestrator.core.text.durations import format_duration

_WITHOUT_STEPS = frozenset({"saving", "done"})
_WORDS = {"importing": "importing tensorflow"}
# Waiting time before the notice, in seconds. An import takes 2 to 10 s, longer on a busy machine.
LATE_S = 15.0
# A task is behind if the furthest task is ahead by more steps than it does in this many seconds, and by more than two.
BEHIND_S, _MOST_STEPS_BEHIND = 20.0, 2
# Longest list of task names.
_NAMED = 3


def doing(task: TaskState, state: RunState) -> str:
    """Return `importing tensorflow`, `waiting for worker:3` or `epoch 2/5 step 37/120`; for an ended task the last one.

    Empty if only its state is known."""
    if task.phase is TaskPhase.PENDING:
        return f"preloading {', '.join(state.preloading)}" if state.preloading else ""
    if task.phase is TaskPhase.STOPPING or task.phase.is_end:
        return progress_text(task.progress)
    if task.is_debugged:
        return _debugged_text(task.progress)
    awaited = waiting_for(task, state)
    if awaited:
        return f"waiting for {join_names(awaited)}"
    told = progress_text(task.progress)
    if told == "waiting" and len(cluster_of(state)) > 1:
        return "connecting"
    if told or not task.plan.serves:
        return told
    return "port open" if task.phase is TaskPhase.RUNNING else "starting"


def _debugged_text(progress: Progress) -> str:
    debugger = progress.debugger
    if debugger is not None and debugger.state == "waiting":
        return f"waiting for a debugger on port {debugger.port}"
    is_failed = debugger is not None and debugger.state == "post_mortem"
    return ", ".join(filter(None, (progress_text(progress), "post-mortem" if is_failed else "debugged")))


def progress_text(progress: Progress) -> str:
    """Return `epoch 2/5 step 37/120`, `evaluating step 3/70`, or just the phase."""
    phase = progress.phase or ""
    if phase in _WITHOUT_STEPS:
        return phase
    parts = []
    if phase in BESIDE_TRAINING:
        parts.append(phase)
    elif progress.epoch is not None:
        parts.append(f"epoch {progress.epoch}" + (f"/{progress.epochs}" if progress.epochs else ""))
    if progress.step is not None:
        parts.append(f"step {progress.step:,}" + (f"/{progress.steps:,}" if progress.steps else ""))
    elif progress.fit is not None and not parts:
        parts.append(f"step {progress.fit.done:,}")
    return " ".join(parts) or _WORDS.get(phase, phase)


def waiting_for(task: TaskState, state: RunState) -> tuple[str, ...]:
    """Return the tasks that this one waits for, in plan order."""
    if not waits(task, state):
        return ()
    return state.awaited


def late_tasks(state: RunState) -> list[TaskState]:
    """Return the tasks that others wait for, in plan order."""
    if not any(waits(task, state) for task in state.tasks.values()):
        return []
    return [task for task in cluster_of(state) if not task.has_arrived]


def late_start(state: RunState, now: float) -> str | None:
    """Return `worker:0 and worker:1 wait for worker:2 (importing tensorflow, 14s)`; None if no task waits.

    `now` is in monotonic seconds."""
    late = late_tasks(state)
    if not late:
        return None
    waiting = [task.name for task in state.tasks.values() if waits(task, state)]
    awaited = [f"{task.name} ({_activity_and_duration(task, state, now)})" for task in late]
    return f"{join_names(waiting)} wait{'s' if len(waiting) == 1 else ''} for {join_names(awaited)}"


def join_names(names: Sequence[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`, or `a and 7 others`."""
    if len(names) > _NAMED:
        return f"{names[0]} and {len(names) - 1} others"
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def cluster_of(state: RunState) -> list[TaskState]:
    """Return the tasks whose servers form the cluster, without the evaluator."""
    return [task for task in state.tasks.values() if task.is_in_cluster]


def behind_tasks(state: RunState) -> frozenset[str]:
    """Return the tasks of the cluster that are behind its furthest task by more steps than that does in BEHIND_S."""
    places = {
        task.name: place for task in cluster_of(state) if task.is_live and (place := position(task.progress))
    }
    if len(places) < 2:
        return frozenset()
    first = max(places, key=lambda name: places[name])
    steps_per_s = state.tasks[first].progress.steps_per_s
    if not steps_per_s:
        return frozenset()
    least = places[first] - max(_MOST_STEPS_BEHIND, steps_per_s * BEHIND_S)
    return frozenset(name for name, place in places.items() if place < least)


def serves_others(task: TaskState, state: RunState) -> bool:
    """True for a task that only executes the requests of others: a parameter server, or a coordinator's worker."""
    if task.plan.role == PS or task.progress.phase == "serving":
        return True
    leads = task.plan.index == 0 and f"{CHIEF}:0" not in state.tasks
    return task.plan.role == WORKER and state.is_coordinated and not task.course.stepped and not leads


def waits(task: TaskState, state: RunState) -> bool:
    """True if the task can only continue with the others: it reports so, or it reports nothing and listens."""
    if task.phase not in (TaskPhase.STARTING, TaskPhase.RUNNING) or not task.plan.serves:
        return False
    if task.progress.phase is not None or task.progress.step is not None:
        return task.progress.phase == "waiting"
    is_alone = task.plan.role == EVALUATOR or serves_others(task, state)
    return task.phase is TaskPhase.RUNNING and not is_alone


def _activity_and_duration(task: TaskState, state: RunState, now: float) -> str:
    if task.phase.is_end:
        return f"{task.phase}, exit code {task.exit_code}" if task.exit_code is not None else str(task.phase)
    words = doing(task, state) or str(task.phase)
    return (
        words if task.since_mono is None else f"{words}, {format_duration(float(int(now - task.since_mono)))}"
    )


class StartWatch:
    """Gets the state after each event. `due` is when `notice` should be called (monotonic seconds), or None."""

    def __init__(self) -> None:
        self.due: float | None = None
        self._attempt = 0
        self._is_over = False
        self._awaited = Matching(lambda task, state: task.is_awaited)
        self._waiting = Matching(waits)

    def update(self, state: RunState, changed: Collection[TaskState], now: float) -> None:
        """Take in a changed state."""
        if state.attempt != self._attempt:
            self._attempt, self._is_over, self.due = state.attempt, False, None
        if self._is_over or not state.tasks:
            return
        self._awaited.update(state, changed)
        self._waiting.update(state, changed)
        if state.teardown is not None or not self._awaited:
            self._is_over, self.due = True, None
        elif not self._waiting:
            self.due = None
        elif self.due is None:
            self.due = now + LATE_S

    def defer(self, seconds: float, now: float) -> None:
        """Wait longer."""
        if self.due is not None:
            self.due += seconds

    def notice(self, state: RunState, now: float) -> str | None:
        """Return the notice once when it is due; else None."""
        if self.due is None or now < self.due:
            return None
        self._is_over, self.due = True, None
        return late_start(state, now)


def furthest(state: RunState) -> int | None:
    """Return the last step, over all epochs, that a task of this attempt has done; None if unknown."""
    return max((course.reached for course in _courses(state) if course.reached is not None), default=None)


def began_at(state: RunState) -> int | None:
    """Return the step, over all epochs, at which this attempt began; None if unknown. If tasks differ, the smallest."""
    return min((course.began_at for course in _courses(state) if course.began_at is not None), default=None)


def reports_each_step(state: RunState) -> bool:
    """True if every task of this attempt has reported each of its steps."""
    return not any(course.skips for course in _courses(state))


def last_training(state: RunState) -> Training | None:
    """Return the progress of the first task that reported a loss, finite or not, or else an epoch: the chief, if it
    trains."""
    reports = [task.progress for task in state.tasks.values() if task.plan.role != EVALUATOR]
    losses = [report for report in reports if (report.loss, report.bad_loss) != (None, None)]
    found = next(iter(losses or [report for report in reports if report.epoch is not None]), None)
    if found is None:
        return None
    step = None if found.phase in BESIDE_TRAINING else found.step
    return Training(epoch=found.epoch, epochs=found.epochs, step=step, loss=found.loss, metrics=found.metrics)


def _courses(state: RunState) -> list[Course]:
    return [task.course for task in state.tasks.values()]
