"""Takes in what the agent reports on one run: each message becomes the events it stands for."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from typing import Protocol, assert_never

from orchestrator import diagnosis, events
from orchestrator.clocks import now
from orchestrator.events import Event, Symptom, SymptomKind, TeardownReason
from orchestrator.links import agent_link
from orchestrator.links.agent_link import AgentMessage
from orchestrator.plan import RunPlan, planned_tasks
from orchestrator.progress.progress_throttle import ProgressThrottle
from orchestrator.runs.exceptions import read_exception, write_traceback
from orchestrator.runs.last_words import last_words
from orchestrator.runs.store import RunStore
from orchestrator.state import RunState


class Planner(Protocol):
    """Plans an attempt once its ports are known."""

    def plan(self, attempt: int, ports: tuple[int, ...]) -> RunPlan: ...


class Run(Protocol):
    """What the reports need of the run they are on."""

    @property
    def state(self) -> RunState: ...

    def finish_log(self, task: str) -> None:
        """Nothing more of the task's will be written."""

    def lose_agent(self, reason: str) -> None: ...


class AgentReports:
    """One run's reports. Events go to the end of `queue`; `plan` is the attempt's, once its ports are held."""

    def __init__(
        self, run: Run, planner: Planner, store: RunStore, throttle: ProgressThrottle, queue: deque[Event]
    ) -> None:
        self.plan: RunPlan | None = None
        self._serving: frozenset[str] = frozenset()
        self._run = run
        self._planner = planner
        self._store = store
        self._throttle = throttle
        self._queue = queue
        self._usage: dict[str, dict[str, float]] = {}

    def take(self, message: AgentMessage) -> None:
        match message:
            case agent_link.Hello():
                return
            case agent_link.Held():
                self.plan = self._planner.plan(message.attempt, message.ports)
                self._serving = frozenset(str(task.task) for task in self.plan.tasks if task.serves)
                tasks = planned_tasks(self.plan)
                self._happened(events.AttemptPlanned(**now(), attempt=message.attempt, tasks=tasks))
            case agent_link.HoldFailed():
                self._run.lose_agent(f"no ports: {message.reason}")
            case agent_link.Preloaded():
                done = events.Preloaded(**now(), modules=message.modules, seconds=message.seconds)
                self._happened(done)
            case agent_link.NotPreloaded():
                self._happened(events.NotPreloaded(**now(), reason=message.reason))
            case agent_link.Started():
                self._take_start(message)
            case agent_link.StartFailed():
                failed = events.TaskStartFailed(
                    **now(), task=message.task, exit_code=message.exit_code, reason=message.reason
                )
                self._happened(failed)
            case agent_link.Listening():
                self._happened(events.TaskReady(**now(), task=message.task))
            case agent_link.ProgressMade():
                progress = message.checked()
                if progress is not None:
                    self._throttle.put(message.task, progress)
            case agent_link.Sampled():
                self._take_sample(message)
            case agent_link.Exited():
                self._take_exit(message)
            case agent_link.Empty():
                self._take_emptiness(message)
            case _:
                assert_never(message)

    def _happened(self, event: Event) -> None:
        self._queue.append(event)

    def _take_start(self, message: agent_link.Started) -> None:
        self._throttle.forget(message.task)
        started = events.TaskStarted(
            **now(),
            task=message.task,
            pid=message.pid,
            start_ticks=message.start_ticks,
            method=message.method,
        )
        self._happened(started)
        if message.task not in self._serving:
            self._happened(events.TaskReady(**now(), task=message.task))

    def _take_exit(self, message: agent_link.Exited) -> None:
        at = now()
        self._usage.pop(message.task, None)
        self._run.finish_log(message.task)  # its last lines may tell progress
        progress = self._throttle.take_last(message.task, at["mono"])
        if progress is not None:
            self._happened(events.TaskProgressed(**at, task=message.task, progress=progress))
        exited = events.TaskExited(
            **at,
            task=message.task,
            exit_code=message.exit_code,
            signal=message.signal,
            order=message.order,
            noticed_s=max(0.0, at["mono"] - message.mono),
            peers=message.peers,
            symptom=None if message.exit_code == 0 else self._symptom(message.task),
            peer_symptoms=self._raised_by(message.peers) if self._is_first_failure(message) else {},
        )
        self._happened(exited)

    def _is_first_failure(self, message: agent_link.Exited) -> bool:
        if message.exit_code == 0 or self._run.state.teardown is not None:
            return False
        waiting = (event for event in self._queue if isinstance(event, events.TaskExited))
        return all(event.exit_code == 0 for event in waiting)

    def _raised_by(self, tasks: Iterable[str]) -> dict[str, Symptom]:
        """Those with an exception of their own. Read before a teardown makes others raise something too."""
        symptoms = {task: self._symptom(task) for task in tasks}
        return {task: symptom for task, symptom in symptoms.items() if symptom.kind is SymptomKind.OWN}

    def _symptom(self, task: str) -> Symptom:
        """What the task put down itself when it fell; else what its log ends with."""
        paths = self._store.paths
        uncaught = read_exception(paths.task_exception(task))
        symptom = diagnosis.read_symptom(last_words(paths.task_log(task)), uncaught)
        if uncaught is None or not write_traceback(uncaught, paths.task_traceback(task)):
            return symptom
        return symptom.model_copy(update={"exception_file": str(paths.task_traceback(task))})

    def _take_sample(self, message: agent_link.Sampled) -> None:
        self._usage |= {task: usage.model_dump() for task, usage in message.tasks.items()}
        try:
            self._store.write_sample(tasks=self._usage, **now())
        except OSError as error:
            # Figures to look at are not worth a run, on a full disk for instance.
            sys.stderr.write(f"sample.json: {error}\n")

    def _take_emptiness(self, message: agent_link.Empty) -> None:
        if message.swept and self._run.state.teardown is TeardownReason.FINISHED:
            many = "processes" if message.swept > 1 else "process"
            text = f"killed {message.swept} {many} that the tasks had left running"
            self._happened(events.Noticed(**now(), text=text))
        self._happened(events.TeardownEnded(**now(), swept=message.swept))
