"""Turns the agent's messages about one run into events."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from time import monotonic, thread_time
from typing import assert_never

from orchestrator.core.diagnosis.stack_text import to_task_stack
from orchestrator.core.diagnosis.symptoms import read_symptom
from orchestrator.core.job.tensorboard import TASK as TENSORBOARD
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.progress.reported import ProgressThrottle, parse_facts, parse_progress
from orchestrator.core.state import events
from orchestrator.core.state.events import Event, Symptom, SymptomKind, TeardownReason
from orchestrator.core.text.counted import counted
from orchestrator.core.text.sizes import format_size
from orchestrator.links.agent_link import AgentMessage, LinkBack, LinkSilent
from orchestrator.store.runs.task_files import append_stacks, read_exception, read_log_tail, write_traceback
from orchestrator.store.runs.writer import RunStore
from orchestrator.supervisor import Now, now
from orchestrator.supervisor.control_orders import StackRequests
from orchestrator.supervisor.run_logs import RunLogs
from orchestrator.supervisor.tensorboard_task import TensorBoardTask
from worker.wire import facts, messages
from worker.wire.checks import Checked

# Shortest time between two writes of the tasks' latest progress, seconds. With thousands of tasks a write takes long:
# it may use 1/100 of a core.
_SAMPLE_INTERVAL_S = 0.2
_SAMPLE_COST_SHARE = 100
# Most peers whose exception or last lines are read at the first failure.
_MOST_PEERS = 100
_SAME_CLOCK = (0.0, 0.0)
# A task's versions and saved checkpoints: at most so many records at once, and one in an interval (seconds).
_FACTS_AT_ONCE, _FACT_INTERVAL_S = 20, 1.0


def _known(usage: facts.Usage) -> dict[str, float]:
    return {name: value for name, value in vars(usage).items() if value is not None}


class AgentReports:
    """Appends the events for each message to `queue`; reads the state of `lifecycle`, and decides nothing."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        store: RunStore,
        throttle: ProgressThrottle,
        logs: RunLogs,
        stacks: StackRequests,
        tensorboard: TensorBoardTask,
        queue: deque[Event],
    ) -> None:
        self._lifecycle = lifecycle
        self._store = store
        self._throttle = throttle
        self._logs = logs
        self._stacks = stacks
        self._tensorboard = tensorboard
        self._queue = queue
        self._usage: dict[str, dict[str, float]] = {}
        self._has_new_usage = False
        self._sample_due = 0.0
        self._exits = 0
        self._versions: dict[str, dict[str, str]] = {}
        self._facts_due: dict[str, float] = {}
        self._clock = _SAME_CLOCK

    @property
    def due(self) -> float | None:
        """When write_sample() has something new to write (monotonic seconds)."""
        return self._sample_due if self._throttle.has_changed or self._has_new_usage else None

    def take(self, message: AgentMessage, clock: tuple[float, float] = _SAME_CLOCK) -> None:
        """`clock` is that of the agent's host: its monotonic clock minus ours, and the error of that, in seconds."""
        self._clock = clock
        if getattr(message, "task", None) == TENSORBOARD:
            self._tensorboard.take(message, self._lifecycle.state.teardown is not None)
        else:
            self._take(message)

    def _take(self, message: AgentMessage) -> None:
        match message:
            case messages.Hello() | messages.Begun() | messages.Held() | messages.Log() | messages.Notice():
                return  # the supervisor has taken them
            case LinkSilent() | LinkBack() | messages.Ping() | Checked():
                return  # about a host
            case messages.HoldFailed():
                self._append(events.AgentLost(**now(), reason=f"no ports: {message.reason}"))
            case messages.Preloaded():
                self._append(events.Preload(**now(), **vars(message)))
            case messages.NotPreloaded(again=True):
                text = f"preloading again: {message.reason}"
                self._append(events.Noticed(**now(), text=text, verbose=True))
            case messages.NotPreloaded():
                self._append(events.Preload(**now(), refused=message.reason))
            case messages.Started():
                self._take_start(message)
            case messages.Listening():
                self._append(events.TaskReady(**now(), task=message.task))
            case messages.ProgressMade():
                progress = parse_progress(message.progress)
                if progress is not None:
                    self._throttle.put(message.task, progress)
                self._take_facts(message)
            case messages.Sampled():
                self._usage |= {task: _known(usage) for task, usage in message.tasks.items()}
                self._has_new_usage = True
            case messages.Exited():
                self._take_exit(message)
            case messages.DiskFull():
                self._append(events.DiskFull(**now(), task=message.task, reason=message.reason))
            case messages.Stacked():
                file = self._store.paths.task_stacks(message.task)
                stack = append_stacks(to_task_stack(message), message.text, self._store.directory, file)
                self._stacks.answered(message.task, message.native, stack, monotonic())
            case messages.Empty():
                self.take_empty(message.swept, message.left)
            case _:
                assert_never(message)

    def _append(self, event: Event) -> None:
        self._queue.append(event)

    def _take_facts(self, message: messages.ProgressMade) -> None:
        """Record versions when they change, and saved checkpoints: at most 20 at once, and one a second."""
        versions, saved = parse_facts(message.progress)
        at, task = now(), message.task
        if versions == self._versions.get(task):
            versions = None
        due = max(self._facts_due.get(task, 0.0), at["mono"] - _FACTS_AT_ONCE * _FACT_INTERVAL_S)
        if (versions is None and saved is None) or due > at["mono"]:
            return
        self._facts_due[task] = due + _FACT_INTERVAL_S
        if versions is not None:
            self._versions[task] = versions
            self._append(events.VersionsFound(**at, task=task, versions=versions))
        if saved is not None:
            self._append(events.CheckpointSaved(**at, task=task, name=saved.name, seconds=saved.seconds))

    def _take_start(self, message: messages.Started) -> None:
        self._throttle.forget(message.task)
        self._append(events.TaskStarted(**now(), **vars(message)))
        task = self._lifecycle.state.tasks.get(message.task)
        if task is None or not task.plan.serves:
            self._append(events.TaskReady(**now(), task=message.task))

    def _take_exit(self, message: messages.Exited) -> None:
        at = now()
        offset, error = self._clock
        ended_mono = min(max(0.0, message.exit.mono - offset), at["mono"])
        its = replace(message.exit, mono=ended_mono, clock_error_s=error)
        symptom = None
        if its.start_error is None:
            self._end_process(message, at)
            symptom = None if its.exit_code == 0 else self._symptom(message.task)
        peers = its.peers if self._is_first_and_collateral(symptom) else {}
        self._append(
            events.TaskExited(
                **at,
                task=message.task,
                exit=its,
                order=self._exits,
                symptom=symptom,
                peer_symptoms=self._own_failures(peers),
            )
        )
        self._exits += 1

    def _end_process(self, message: messages.Exited, at: Now) -> None:
        """Record the last progress, usage and exception of a process."""
        usage = self._usage.pop(message.task, None)
        self._stacks.task_ended(message.task, at["mono"])
        self._logs.finish(message.task)  # the last lines may contain progress
        progress = self._throttle.take_last(message.task, at["mono"])
        if progress is not None:
            self._append(events.TaskProgressed(**at, task=message.task, progress=progress))
        if message.exception is not None:
            self._store.write_exception(message.task, message.exception)
        latest, attempt = self._throttle.latest_of(message.task), self._lifecycle.state.attempt
        self._store.end_task(at["mono"], message.task, attempt, latest, usage)

    def _is_first_and_collateral(self, symptom: Symptom | None) -> bool:
        """Whether this is the first failure and its exception blames a peer.

        Only then the last lines of the peers are read, which takes 6 ms each.
        """
        if symptom is None or symptom.kind is not SymptomKind.COLLATERAL:
            return False
        if self._lifecycle.state.teardown is not None:
            return False
        waiting = (event for event in self._queue if isinstance(event, events.TaskExited))
        return all(event.exit.exit_code == 0 for event in waiting)

    def _own_failures(self, tasks: Iterable[str]) -> dict[str, Symptom]:
        """The tasks that failed by themselves. Read now, because a teardown makes tasks raise exceptions, too.

        At most _MOST_PEERS are read, first those that have written an exception."""
        paths = self._store.paths
        likely = sorted(tasks, key=lambda task: not paths.task_exception(task).exists())
        symptoms = {task: self._symptom(task) for task in likely[:_MOST_PEERS]}
        return {task: symptom for task, symptom in symptoms.items() if symptom.kind is SymptomKind.OWN}

    def _symptom(self, task: str) -> Symptom:
        """From the exception that the task's current process wrote, or else from the end of its log."""
        paths, run = self._store.paths, self._store.directory
        uncaught = read_exception(run, paths.task_exception(task))
        tail = read_log_tail(run, paths.task_log(task), self._logs.process_start(task))
        symptom = read_symptom(tail, uncaught)
        if uncaught is not None and uncaught.mono is not None:
            symptom = symptom.model_copy(update={"raised_mono": uncaught.mono - self._clock[0]})
        if uncaught is None or not write_traceback(uncaught, run, paths.task_traceback(task)):
            return symptom
        return symptom.model_copy(update={"exception_file": str(paths.task_traceback(task))})

    def cpu_percent(self) -> dict[str, float]:
        """{task: percent of one core}, from the last sample."""
        return {task: usage["cpu_percent"] for task, usage in self._usage.items()}

    def write_sample(self) -> None:
        """Write the last sample and progress if they are new. Called between other work: a disk may be slow."""
        at = now()
        if self.due is not None and at["mono"] >= self.due:
            began = thread_time()
            self._has_new_usage = False
            attempt = self._lifecycle.state.attempt
            self._store.write_sample(
                tasks=self._usage, progress=self._throttle.take_latest(), attempt=attempt, **at
            )
            cost_s = thread_time() - began
            self._sample_due = at["mono"] + max(_SAMPLE_INTERVAL_S, cost_s * _SAMPLE_COST_SHARE)

    def take_unsent(self, host: str, unsent: Mapping[str, int]) -> None:
        """Report that the ends of logs are missing."""
        for task, count in unsent.items():
            text = f"the last {format_size(count)} of the log of {task} were not sent: the link to {host} is too slow"
            self._append(events.Noticed(**now(), text=text))

    def take_empty(self, swept: int, left: tuple[facts.LeftProcess, ...]) -> None:
        """No process of the attempt is left but those in `left`; `swept` had outlived their tasks."""
        if swept and self._lifecycle.state.teardown is TeardownReason.FINISHED:
            text = f"killed {counted(swept, 'process', 'processes')} that the tasks had left running"
            self._append(events.Noticed(**now(), text=text))
        self._append(events.TeardownEnded(**now(), swept=swept, left=left))
