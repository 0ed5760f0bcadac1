"""Reports notices that the machines of a run will go, and finds out what Slurm does with the run's job afterwards."""

from __future__ import annotations

import os
from collections import deque
from typing import Protocol

from orchestrator.core.diagnosis.cause import describe_notice
from orchestrator.core.errors import ExitCode
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle.actions import Deadline
from orchestrator.core.state.events import DeadlineReached, Event, NoticeGiven, NoticeSource, StopReason
from orchestrator.core.state.result import CauseKind, RunResult
from orchestrator.core.state.state import RunState
from orchestrator.engines import slurm
from orchestrator.links.orders import StopOrder
from orchestrator.supervisor import now


class NoticedRun(Protocol):
    """The run, as far as notices need it. `worked`: see Lifecycle."""

    @property
    def state(self) -> RunState: ...

    @property
    def worked(self) -> bool: ...


class Notices:
    """Appends its events to `queue`."""

    def __init__(
        self, spec: JobSpec, run: NoticedRun, queue: deque[Event], *, is_continued: bool = False
    ) -> None:
        """`is_continued`: the job had begun another run before Slurm started it again."""
        self._spec = spec
        self._run = run
        self._is_continued = is_continued
        self._queue = queue

    def give(self, source: NoticeSource) -> None:
        """Report a notice. Slurm gives one for each host; the first counts."""
        is_of_slurm = source is NoticeSource.SLURM
        known = [self._run.state.notice, *self._queue]
        if is_of_slurm and any(isinstance(each, NoticeGiven) and each.source is source for each in known):
            return
        left_s = self._spec.kill_wait_s if is_of_slurm else self._spec.notice_s
        self._queue.append(NoticeGiven(**now(), source=source, left_s=left_s))

    def take_as_notice(self, order: StopOrder) -> bool:
        """Report a SIGTERM as a notice if Slurm has sent it to end the batch job of this process. Return whether."""
        if order.reason is not StopReason.TERMINATE or order.force or not self.is_job_ending():
            return False
        self.give(NoticeSource.SLURM)
        return True

    def is_job_ending(self) -> bool:
        """Whether this process runs on a node of the run's job, and Slurm ends the job."""
        return slurm.is_ending(self._spec.slurm_job, os.environ)

    def limit_reached(self) -> DeadlineReached:
        """The deadline before the end of the allocation, with the time left. Slurm may have extended the time limit."""
        job = self._spec.slurm_job
        left_s = None if job is None else slurm.time_left(job)
        return DeadlineReached(**now(), deadline=Deadline.NOTICE, left_s=left_s)

    def with_reason(self, result: RunResult) -> RunResult:
        """Return the result of a run. If it ended because a user cancelled the job, it counts as stopped by SIGTERM."""
        job, notice, cause = self._spec.slurm_job, self._run.state.notice, result.cause
        if job is None or notice is None or notice.source is not NoticeSource.SLURM:
            return result
        if cause is None or cause.kind is not CauseKind.NOTICE or not slurm.is_cancelled(job):
            return result
        text = cause.text.replace(describe_notice(notice), f"Slurm's job {job} was cancelled", 1)
        cause = cause.model_copy(update={"text": text})
        return result.model_copy(update={"exit_code": int(ExitCode.TERMINATED), "cause": cause})

    def requeued(self, result: RunResult) -> RunResult | None:
        """Return the result of the run if Slurm starts its job again, which then records the end; else None.

        The job is requeued after a notice, if a run of it has ever worked: otherwise it would fail again. It is also
        requeued after the loss of a node, if the attempt has reported a step. Slurm itself would requeue it then, but
        notices the loss minutes later.
        """
        job, run = self._spec.slurm_job, self._run
        match result.cause.kind if result.cause else None:
            case CauseKind.NOTICE:
                may_ask = run.worked or self._is_continued
            case CauseKind.HOST:
                state = run.state
                has_begun = not state.history or state.history[-1].attempt < state.attempt
                may_ask = has_begun and any(task.course.stepped for task in state.tasks.values())
            case _:
                return None
        is_again = job is not None and slurm.is_started_again(job, os.environ, may_ask=may_ask)
        if not is_again or result.cause is None:
            return None
        text = f"{result.cause.text}; Slurm starts its job again"
        return result.model_copy(update={"cause": result.cause.model_copy(update={"text": text})})
