"""Watches the limits that blame a task, --start-timeout and --stall-timeout, and silence without a limit (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from heapq import heappop, heappush, heapreplace

from orchestrator.core.diagnosis.hangs import Silence, silence_notice, stall_cause
from orchestrator.core.diagnosis.start_limit import awaits_restart, is_joining, is_missing, start_limit_cause
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.job.tf_config import EVALUATOR
from orchestrator.core.lifecycle.actions import Deadline
from orchestrator.core.progress.activity import serves_others
from orchestrator.core.state.changes import Matching
from orchestrator.core.state.events import DeadlineReached, StacksTaken
from orchestrator.core.state.result import Cause
from orchestrator.core.state.state import RunState, TaskPhase, TaskState

# Bounds on the time between two looks at the stacks of silent tasks, seconds.
_SHORTEST_REST_S = 0.5
_LONGEST_REST_S = 30.0


class TimeLimits:
    """Watches both limits and asks for stacks before a task is blamed. Call update() after each event."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._start = StartLimit(spec.start_timeout_s)
        self._stall = StallLimit(spec.stall_timeout_s)
        self._silence: Silence | None = None
        self._awaited: str | None = None

    def update(self, state: RunState, changed: Collection[TaskState], now: float) -> None:
        self._start.update(state, changed, now)
        self._stall.update(state, changed, now)

    def reset(self) -> None:
        """Ignore the stacks that were asked for in an earlier attempt."""
        self._awaited = None

    def heard(self, host: str, now: float) -> None:
        """A silent host answers again."""
        self._stall.heard(host, now)

    def defer(self, seconds: float, now: float) -> None:
        """`seconds` before `now` do not count."""
        self._start.defer(seconds)
        self._stall.defer(now)

    def deadlines(self) -> list[tuple[float | None, str]]:
        """(monotonic seconds, name) of the next deadlines; none while stacks are being taken."""
        if self._awaited is not None:
            return []
        return [(self._start.due, Deadline.START_LIMIT), (self._stall.due, Deadline.STALL_LIMIT)]

    def reached(self, event: DeadlineReached) -> str | None:
        """The limit for which stacks must be taken now, if any."""
        if self._awaited is not None:
            return None
        if event.deadline == Deadline.STALL_LIMIT:
            self._silence = self._stall.silence(event.quiet_s, event.busy, event.mono)
            self._awaited = None if self._silence is None else Deadline.STALL_LIMIT
        elif self._start.due is not None and event.mono >= self._start.due:
            self._awaited = Deadline.START_LIMIT
        return self._awaited

    def blame(self, state: RunState, event: StacksTaken) -> Cause | None:
        """The cause according to the stacks; None if they were taken for something else or no task is to blame."""
        if self._awaited is None or event.why != self._awaited:
            return None
        why, self._awaited = self._awaited, None
        if why == Deadline.STALL_LIMIT and self._silence is not None:
            cause = stall_cause(self._spec.stall_timeout_s or 0.0, state, event, self._silence)
            if cause is None:
                self._stall.look_again(event.mono)
            return cause
        if self._start.due is None:
            return None
        return start_limit_cause(self._spec.start_timeout_s or 0.0, state, event, event.mono)


class StartLimit:
    """--start-timeout: from the first server, wherever it listens, until all tasks have joined. `due`: monotonic
    seconds."""

    def __init__(self, limit_s: float | None) -> None:
        self.due: float | None = None
        self._limit_s = limit_s
        self._attempt = 0
        self._joining = Matching(lambda task, state: is_joining(task))
        self._missing = Matching(lambda task, state: is_missing(task))
        self._servers = Matching(lambda task, state: _has_server(task))
        self._restarting = Matching(lambda task, state: task.is_in_cluster and awaits_restart(task))

    def defer(self, seconds: float) -> None:
        if self.due is not None:
            self.due += seconds

    def update(self, state: RunState, changed: Collection[TaskState], now: float) -> None:
        if state.attempt != self._attempt:
            self._attempt, self.due = state.attempt, None
        if self._limit_s is None:
            return
        for tasks in (self._joining, self._missing, self._servers, self._restarting):
            tasks.update(state, changed)
        # While a task waits for its restart, the others have to wait for it.
        is_joining = bool(self._joining) and not self._restarting
        if state.teardown is not None or not (is_joining or self._missing):
            self.due = None
        elif self.due is None and (is_joining or self._servers):
            self.due = now + self._limit_s


def _has_server(task: TaskState) -> bool:
    """Whether it listens on its port, or serves a cluster of several tasks at another address."""
    is_elsewhere = task.phase is TaskPhase.STARTING and (task.progress.cluster or 0) > 1
    return task.is_in_cluster and (task.phase is TaskPhase.RUNNING or is_elsewhere)


class SilenceWatch:
    """Without --stall-timeout: reports tasks that are silent and idle, once until they write again. It ends none."""

    def __init__(self, spec: JobSpec) -> None:
        limit_s = spec.silence_notice_s if spec.stall_timeout_s is None else None
        self._limit_s = limit_s or 0.0
        self._limit = StallLimit(limit_s, phases=(TaskPhase.STARTING, TaskPhase.RUNNING))
        self._silence: Silence | None = None
        self._reported: frozenset[str] = frozenset()

    def update(self, state: RunState, changed: Collection[TaskState], now: float) -> None:
        self._limit.update(state, changed, now)

    def heard(self, host: str, now: float) -> None:
        """A silent host answers again."""
        self._limit.heard(host, now)

    def defer(self, seconds: float, now: float) -> None:
        """`seconds` before `now` do not count."""
        self._limit.defer(now)

    def reset(self) -> None:
        """Ignore the stacks that were asked for in an earlier attempt."""
        self._silence = None

    @property
    def due(self) -> float | None:
        """When to look at the logs again (monotonic seconds); None while stacks are being taken."""
        return None if self._silence is not None else self._limit.due

    def wants_stacks(self, event: DeadlineReached) -> bool:
        """Whether a task has become silent and idle."""
        if self._silence is not None:
            return False
        silence = self._limit.silence(event.quiet_s, event.busy, event.mono)
        if silence is None:
            self._reported = frozenset()
            return False
        self._limit.rest(event.mono, self._limit_s)
        idle = silence.overdue - silence.busy
        self._reported &= idle
        if idle <= self._reported:
            return False
        self._silence = silence
        return True

    def notice(self, state: RunState, event: StacksTaken) -> str | None:
        """The notice according to the stacks, if it is one for this."""
        if self._silence is None or event.why != Deadline.SILENCE:
            return None
        silence, self._silence = self._silence, None
        text = silence_notice(state, event, silence)
        if text is not None:
            self._reported = silence.overdue - silence.busy
        return text


class StallLimit:
    """--stall-timeout: how long each task has been silent. `due`: when to look at its log again (monotonic seconds).

    In many programs only the chief prints. Therefore a silent task hangs only if it does not compute and does not wait
    in TensorFlow for a task that is not silent.
    """

    def __init__(self, limit_s: float | None, phases: tuple[TaskPhase, ...] = (TaskPhase.RUNNING,)) -> None:
        self._limit_s = limit_s
        self._phases = phases
        self._last_sign: dict[str, float] = {}
        self._known: dict[str, TaskState] = {}
        self._attempt = 0
        # (a time not after the last sign, task) for each known task, as a heap.
        self._oldest: list[tuple[float, str]] = []
        self._not_before = 0.0

    def update(self, state: RunState, changed: Collection[TaskState], now: float) -> None:
        """Any change of a task is a sign of life."""
        if self._limit_s is None:
            return
        if state.teardown is not None or state.attempt != self._attempt:
            self._attempt = state.attempt
            self._known.clear()
            self._oldest.clear()
        if state.teardown is not None:
            return
        for task in changed:
            self._update_task(task, state, now)

    def _update_task(self, task: TaskState, state: RunState, now: float) -> None:
        known = self._known.pop(task.name, None)
        if not self._should_report(task, state):
            return
        self._known[task.name] = task
        if known is None or known.pid != task.pid or known.progress != task.progress:
            self._last_sign[task.name] = now
        if known is None:
            heappush(self._oldest, (now, task.name))

    @property
    def due(self) -> float | None:
        if self._limit_s is None or not self._known:
            return None
        return max(self._not_before, self._oldest_sign() + self._limit_s)

    def _oldest_sign(self) -> float:
        """The earliest last sign of a known task. Brings the top of the heap up to date."""
        while True:
            at, name = self._oldest[0]
            if name not in self._known:
                heappop(self._oldest)
            elif self._last_sign[name] > at:
                heapreplace(self._oldest, (self._last_sign[name], name))
            else:
                return at

    def silence(self, quiet_s: Mapping[str, float], busy: Collection[str], now: float) -> Silence | None:
        """The silent tasks, or None if none has reached the limit.

        `quiet_s`: {task: seconds since it last wrote}; `busy`: the tasks that use the CPU.
        """
        for name, seconds in quiet_s.items():
            if name in self._known:
                self._last_sign[name] = max(self._last_sign[name], now - max(0.0, seconds))
        if self._limit_s is None or not self._known:
            return None
        silent_s = {name: now - self._last_sign[name] for name in self._known}
        overdue = frozenset(name for name, seconds in silent_s.items() if seconds >= self._limit_s)
        return Silence(silent_s, overdue, frozenset(busy) & silent_s.keys()) if overdue else None

    def heard(self, host: str, now: float) -> None:
        """A silent host answers again: what its tasks reported meanwhile follows."""
        for name, task in self._known.items():
            if task.plan.host == host:
                self._last_sign[name] = now

    def defer(self, now: float) -> None:
        """No task has been silent until now."""
        self._last_sign = dict.fromkeys(self._last_sign, now)

    def look_again(self, now: float) -> None:
        """No task is to blame yet. The next look is when another task reaches the limit."""
        limit_s = self._limit_s or 0.0
        others = [
            self._last_sign[name] + limit_s for name in self._known if self._last_sign[name] + limit_s > now
        ]
        rest_s = max(_SHORTEST_REST_S, min(limit_s, _LONGEST_REST_S))
        self._not_before = max(now + _SHORTEST_REST_S, min([*others, now + rest_s]))

    def rest(self, now: float, seconds: float) -> None:
        """Do not look for so long."""
        self._not_before = now + seconds

    def _should_report(self, task: TaskState, state: RunState) -> bool:
        """Whether a task is expected to write. Servers are silent, so is an evaluator that waits for checkpoints."""
        is_silent = task.plan.role == EVALUATOR or serves_others(task, state)
        return task.phase in self._phases and not is_silent
