"""Decides what follows the end of a task: a restart, a teardown, the wait for the evaluator, or nothing (pure)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.core.diagnosis.cause import PREEMPTED
from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.job.tf_config import WORKER
from orchestrator.core.lifecycle import completion
from orchestrator.core.lifecycle.actions import Action, Deadline, Happen
from orchestrator.core.lifecycle.restarts import Again, TaskRestarts
from orchestrator.core.state import events
from orchestrator.core.state.events import Event, TeardownReason
from orchestrator.core.state.result import Cause, CauseKind, exit_text
from orchestrator.core.state.state import RunState, TaskPhase, TaskState
from orchestrator.core.text.durations import format_duration


@dataclass(frozen=True)
class Down:
    """Tear the attempt down."""

    reason: TeardownReason
    grace_s: float


class TaskEnds:
    """Decides what follows the end of each task of an attempt; reset() between attempts.

    `not_restarted`: why a task was not restarted; `left_early`: the cause if a task exited with 0 too early;
    `done_without`: the failed tasks that the others continued without; `restarts`: of single tasks.
    """

    def __init__(self, spec: JobSpec, is_updated: Callable[[], bool]) -> None:
        self._spec = spec
        self.restarts = TaskRestarts(spec.max_restarts, is_updated)
        self.after_training = AfterTraining(spec)
        self.reset()

    def reset(self) -> None:
        self.not_restarted: str | None = None
        self.left_early: Cause | None = None
        self.done_without: frozenset[str] = frozenset()
        self.restarts.cancel()
        self.after_training.reset()

    def deadlines(self) -> list[tuple[float | None, str]]:
        return [
            (self.restarts.due, Deadline.TASK_RESTART),
            (self.after_training.evaluator_by, Deadline.EVALUATOR),
        ]

    def is_failure(self, state: RunState, task: TaskState) -> bool:
        """Whether the end of this task is a failure, its exit code 0 or not."""
        if _has_served(state, task):
            return False
        return task.has_failed or _early_exit_reason(state, task) is not None

    def follow(self, state: RunState, name: str, event: Event, *, worked: bool) -> list[Action] | Down:
        """Decide after the end of task `name`. `worked`: whether the run ever reached a training step."""
        task = state.tasks[name]
        early = _early_exit_reason(state, task)
        if early is not None:
            cause = Cause(task=name, kind=CauseKind.LEFT_EARLY, text=early)
            return self._after_failure(state, task, event, early, worked=worked, left_early=cause)
        if task.has_failed and not _has_served(state, task):
            text = task.exit.start_error or exit_text(task.exit_code, task.signal)
            return self._after_failure(state, task, event, text, worked=worked)
        return self._after_success(state, event)

    def stop_waiting(self, state: RunState, event: Event) -> tuple[list[Action], Down]:
        """Stop waiting for the evaluator after --evaluator-timeout.

        A running evaluator is stopped, and the run succeeds. If the evaluator waits for its restart, the evaluation did
        not take place, and the run fails.
        """
        evaluator_task = completion.evaluator(state)
        if evaluator_task is None or not self.restarts.awaits(evaluator_task.name):
            notice = self.after_training.stop_waiting(state, event, has_failed=False)
            return [notice], Down(TeardownReason.FINISHED, self._spec.grace_s)
        self.not_restarted = f"{evaluator_task.name}: --evaluator-timeout was over"
        notice = self.after_training.stop_waiting(state, event, has_failed=True)
        return [notice], Down(TeardownReason.FAILURE, self._spec.grace_s)

    def _after_success(self, state: RunState, event: Event) -> list[Action] | Down:
        """Tear down once every task that the run waits for has ended."""
        if completion.is_training(state):
            return []
        deciding, evaluator = completion.deciding_tasks(state), completion.evaluator(state)
        if not all(map(self._is_over, deciding)):
            return []
        if any(task.has_failed for task in deciding):
            return Down(TeardownReason.FAILURE, self._spec.failure_grace_s)
        if evaluator is not None and not self._is_over(evaluator):
            return self.after_training.begin(state, event)
        still_serving = completion.live_names(completion.serving_tasks(state))
        grace_s = self._spec.grace_s if still_serving else self._spec.failure_grace_s
        failed = evaluator is not None and evaluator.has_failed
        return Down(TeardownReason.FAILURE if failed else TeardownReason.FINISHED, grace_s)

    def _is_over(self, task: TaskState) -> bool:
        return task.phase.is_end and not self.restarts.awaits(task.name)

    def _after_failure(
        self,
        state: RunState,
        task: TaskState,
        event: Event,
        text: str,
        *,
        worked: bool,
        left_early: Cause | None = None,
    ) -> list[Action] | Down:
        match self._spec.policy_of(task.plan.role):
            case FailurePolicy.CONTINUE if completion.is_training(state):
                return self._continue_without(state, task, event, text)
            case FailurePolicy.RESTART_TASK:
                worked = worked or completion.supports_training(state, task)
                decided = self.restarts.after(task, event.mono, worked=worked)
                if isinstance(decided, Again):
                    planned = events.TaskRestartPlanned(
                        at=event.at, mono=event.mono, task=task.name, delay_s=decided.delay_s, text=text
                    )
                    return [Happen(planned)]
                if completion.is_dispensable(state, task):
                    text = f"{text}; not restarted: {decided.reason}"
                    return self._continue_without(state, task, event, text)
                self.not_restarted = f"{task.name}: {decided.reason}"
        self.left_early = left_early
        # The peers of a failed task are stuck in collectives, but those of a preempted task save their state, too.
        is_saving = task.exit_code == PREEMPTED and task.plan.serves
        return Down(TeardownReason.FAILURE, self._spec.grace_s if is_saving else self._spec.failure_grace_s)

    def _continue_without(self, state: RunState, task: TaskState, event: Event, text: str) -> list[Action]:
        if state.is_coordinated and task.plan.role == WORKER:
            self.done_without |= {task.name}
        text = f"{task.name}: {text}; the other tasks continue"
        return [Happen(events.Noticed(at=event.at, mono=event.mono, text=text))]


class AfterTraining:
    """Waits for the evaluator: until `evaluator_by` (monotonic seconds), None without a limit."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self.reset()

    def reset(self) -> None:
        self._has_begun = False
        self.evaluator_by: float | None = None

    def defer(self, seconds: float, now: float) -> None:
        """Wait longer for the evaluator."""
        if self.evaluator_by is not None:
            self.evaluator_by += seconds

    def begin(self, state: RunState, event: Event) -> list[Action]:
        """Begin to wait for the evaluator, once."""
        evaluator_task = completion.evaluator(state)
        if self._has_begun or evaluator_task is None:
            return []
        self._has_begun = True
        limit_s = self._spec.evaluator_timeout_s
        self.evaluator_by = None if limit_s is None else event.mono + limit_s
        if limit_s == 0:
            return []
        most = "" if limit_s is None else f" ({format_duration(limit_s)} at most)"
        text = f"the training has ended; waiting for {evaluator_task.name}{most}"
        return [Happen(events.Noticed(at=event.at, mono=event.mono, text=text))]

    def stop_waiting(self, state: RunState, event: Event, *, has_failed: bool) -> Action:
        """Return the notice that the evaluator has used up its time. `has_failed`: it waits for its restart."""
        self.evaluator_by = None
        evaluator_task = completion.evaluator(state)
        limit_s = self._spec.evaluator_timeout_s
        late = f"{format_duration(limit_s)} after" if limit_s else "with"
        name = evaluator_task.name if evaluator_task else "the evaluator"
        what = "it failed and is not restarted" if has_failed else "it is stopped"
        text = f"{name} had not ended {late} the training (--evaluator-timeout): {what}"
        return Happen(events.Noticed(at=event.at, mono=event.mono, text=text))


def only_evaluator_left(state: RunState) -> str | None:
    """`the training had ended, and evaluator:0 had not` if the run waits for the evaluator alone."""
    evaluator_task = completion.evaluator(state)
    if evaluator_task is None or evaluator_task.phase.is_end or not completion.has_trained(state):
        return None
    return f"the training had ended, and {evaluator_task.name} had not"


def _early_exit_reason(state: RunState, task: TaskState) -> str | None:
    return completion.early_exit_reason(state, task) if task.phase is TaskPhase.SUCCEEDED else None


def _has_served(state: RunState, task: TaskState) -> bool:
    """Whether a task only served a training that is complete."""
    return completion.has_trained(state) and task in completion.serving_tasks(state)
