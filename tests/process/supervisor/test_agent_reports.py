"""Messages of an agent become events, in the order that shows the first failure."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from making import JOB, event, started
from run_records import make_run, one_task
from waiting import until

from orchestrator.core.job.choices import NetworkOption
from orchestrator.core.job.tensorboard import TASK, TensorBoard
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.progress.reported import ProgressThrottle
from orchestrator.core.state import events
from orchestrator.core.state.events import Event, SymptomKind, TeardownReason, event_line, parse_event
from orchestrator.core.state.fold import apply
from orchestrator.core.state.state import RunState
from orchestrator.store.runs.writer import RunStore
from orchestrator.supervisor.agent_reports import AgentReports
from orchestrator.supervisor.control_orders import StackRequests
from orchestrator.supervisor.tensorboard_task import TensorBoardTask
from worker.wire.facts import ExitFacts, Usage
from worker.wire.messages import (
    DiskFull,
    Empty,
    Exited,
    HoldFailed,
    Listening,
    ProgressMade,
    Sampled,
    Started,
)

RUN = "run-1"
BOARD = TensorBoard(python="/usr/bin/python3", program="/serve.py")
OWN_ERROR = 'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\nValueError: boom\n'
PEER_ERROR = OWN_ERROR.replace(
    "ValueError: boom", "tensorflow.python.framework.errors_impl.UnavailableError: Socket closed"
)


class Desk:
    """The reports on a run with a real directory and lifecycle. Events that a test applies change only the state."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self.queue: deque[Event] = deque()
        self.throttle = ProgressThrottle()
        self.finished: list[str] = []
        logs: Any = SimpleNamespace(finish=self.finished.append, process_start=lambda task: 0)
        self.lifecycle = Lifecycle(JOB, RUN, 0.0)
        self.reports = AgentReports(
            self.lifecycle,
            store,
            self.throttle,
            logs,
            StackRequests(lambda tasks, native: tasks),
            TensorBoardTask(BOARD, NetworkOption.HOST, store, self.queue),
            self.queue,
        )
        for each in one_task(1.0):
            self.state = apply(self.state, each)

    @property
    def state(self) -> RunState:
        return self.lifecycle.state

    @state.setter
    def state(self, state: RunState) -> None:
        self.lifecycle.state = state

    def exits(self, task: str, code: int, peers: dict[str, str] | None = None) -> None:
        self.reports.take(Exited(task, ExitFacts(code, None, 1.0, peers=peers or {})))

    def failure(self, task: str, peers: dict[str, str]) -> events.TaskExited:
        """The event of a task that exits with 1. `peers`: the process states of the others."""
        self.exits(task, 1, peers)
        reported = self.queue[-1]
        assert isinstance(reported, events.TaskExited)
        return reported

    def progress(self, text: str) -> None:
        self.reports.take(ProgressMade("worker:0", text))

    def logs_end(self, *texts: str) -> None:
        """Write the logs of worker:0, worker:1 ..."""
        for index, text in enumerate(texts):
            self.store.paths.task_log(f"worker:{index}").write_text(text)

    def sample(self) -> dict[str, Any] | None:
        """Return the sample.json if it was written again."""
        self.reports.write_sample()
        path = self.store.paths.sample
        document = json.loads(path.read_text()) if path.exists() else None
        path.unlink(missing_ok=True)
        return document

    def tear_down(self, reason: TeardownReason) -> None:
        self.state = apply(self.state, event(events.TeardownBegan, 2.0, reason=reason, grace_s=0.5))


@pytest.fixture
def desk() -> Iterator[Desk]:
    store = make_run()
    yield Desk(store)
    store.close()


def test_agent_is_lost_if_ports_cannot_be_held(desk: Desk) -> None:
    desk.reports.take(HoldFailed("Too many open files"))
    (lost,) = desk.queue
    assert isinstance(lost, events.AgentLost) and lost.reason == "no ports: Too many open files"


def test_exit_is_reported_whole_by_the_supervisor_s_clock(desk: Desk) -> None:
    """Also if the clock of its host is wrong, so that readers of the events can read it."""
    for mono, offset in ((5.0, 10.0), (1e12, 0.0)):
        told = ExitFacts(3, None, mono, peers={"worker:1": "T"}, oom_kills=1, peak_bytes=7)
        desk.reports.take(Exited("worker:0", told), (offset, 0.5))
        made = desk.queue.pop()
        assert isinstance(made, events.TaskExited) and parse_event(event_line(made)) == made
        assert 0 <= made.exit.mono <= made.mono
        assert replace(made.exit, mono=mono, clock_error_s=0.0) == told and made.exit.clock_error_s == 0.5


def test_failed_start_is_an_exit_that_changes_nothing_else(desk: Desk) -> None:
    desk.logs_end(OWN_ERROR)
    desk.reports.take(Exited("worker:0", ExitFacts(127, None, 1.0, start_error="no such file")))
    (made,) = desk.queue
    assert isinstance(made, events.TaskExited) and made.exit.start_error == "no such file"
    assert made.symptom is None and not desk.finished


# -- progress and usage


def test_invalid_progress_is_ignored_and_delayed_progress_is_reported_before_the_exit(desk: Desk) -> None:
    for progress in ("[]", "nonsense", '{"step": "many"}'):
        desk.progress(progress)
    assert desk.throttle.due() is None
    desk.progress('{"step": 7}')
    desk.exits("worker:0", 0)
    first, second = desk.queue
    assert isinstance(first, events.TaskProgressed) and first.progress.step == 7
    assert isinstance(second, events.TaskExited) and desk.finished == ["worker:0"]


def test_progress_is_in_the_sample_before_its_event_is_due(desk: Desk) -> None:
    """An event is written once a second; the table shows newer progress."""
    desk.progress('{"step": 1}')
    desk.throttle.take(desk.reports.due or 0.0)
    for step in (1, 2):
        desk.progress(f'{{"step": {step}}}')
        written = until(desk.sample)
        assert written["progress"]["worker:0"]["step"] == step


def test_usage_is_written_at_intervals_if_it_is_new(desk: Desk) -> None:
    def use(index: int) -> None:
        desk.reports.take(Sampled({f"worker:{index}": Usage(cpu_percent=5.0, memory_bytes=index)}))

    use(0)
    assert not desk.store.paths.sample.exists(), "it waits until nothing else is to be done"
    first = desk.sample()
    assert first is not None and first["tasks"]["worker:0"]["memory_bytes"] == 0
    assert desk.reports.due is None and desk.sample() is None
    use(1)
    assert desk.sample() is None and desk.reports.due is not None
    assert until(desk.sample)["tasks"].keys() == {"worker:0", "worker:1"}


# -- the logs of peers


def test_log_tails_of_peers_are_read_at_the_first_failure_only(desk: Desk) -> None:
    desk.logs_end(PEER_ERROR, OWN_ERROR, OWN_ERROR)
    desk.exits("worker:1", 0, {"worker:0": "R"})
    first = desk.failure("worker:0", {"worker:2": "R"})
    assert first.symptom is not None and first.symptom.kind is SymptomKind.COLLATERAL
    assert {task: one.kind for task, one in first.peer_symptoms.items()} == {"worker:2": SymptomKind.OWN}
    assert desk.failure("worker:0", {"worker:2": "R"}).peer_symptoms == {}


def test_log_tails_of_peers_are_not_read_after_an_own_failure_nor_in_teardown(desk: Desk) -> None:
    desk.logs_end(OWN_ERROR, OWN_ERROR)
    failed = desk.failure("worker:0", {"worker:1": "R"})
    assert failed.symptom is not None and failed.symptom.exception == "ValueError: boom"
    desk.logs_end(PEER_ERROR, OWN_ERROR)
    desk.tear_down(TeardownReason.REQUEST)
    assert failed.peer_symptoms == desk.failure("worker:0", {"worker:1": "R"}).peer_symptoms == {}


def test_few_of_many_peers_are_read_first_those_with_an_exception(desk: Desk) -> None:
    desk.logs_end(PEER_ERROR, *[OWN_ERROR] * 299)
    exception = desk.store.paths.task_exception("worker:299")
    exception.parent.mkdir(exist_ok=True)
    exception.write_text(json.dumps({"type": "KeyError", "message": "'x'", "text": "KeyError: 'x'"}))
    peers = {f"worker:{index}": "R" for index in range(1, 300)}
    found = desk.failure("worker:0", peers).peer_symptoms
    assert found["worker:299"].exception == "KeyError: 'x'"
    assert len(found) == 100


# -- ends


def test_full_disk_is_reported_after_the_exit(desk: Desk) -> None:
    full = "/x: No space left on device"
    failed = apply(desk.state, desk.failure("worker:0", {}))
    desk.reports.take(DiskFull("worker:0", full))
    report = desk.queue[-1]
    assert apply(failed, report).tasks["worker:0"].full_disk == full
    planned = apply(failed, event(events.TaskRestartPlanned, 2.0, task=0, delay_s=1, text="again"))
    waits = apply(planned, report).tasks["worker:0"]
    assert waits.full_disk is None
    assert waits.before_restart is not None and waits.before_restart.full_disk == full
    assert apply(apply(planned, started(mono=3.0)), report).tasks["worker:0"].full_disk is None


def test_remaining_processes_of_a_finished_run_are_reported(desk: Desk) -> None:
    running = desk.state
    told = "killed {} that the tasks had left running"
    for reason, swept, reported in (
        (TeardownReason.FINISHED, 0, []),
        (TeardownReason.FINISHED, 1, [told.format("1 process")]),
        (TeardownReason.FINISHED, 3, [told.format("3 processes")]),
        (TeardownReason.REQUEST, 3, []),
    ):
        desk.queue.clear()
        desk.state = running
        desk.tear_down(reason)
        desk.reports.take(Empty(swept))
        *before, last = desk.queue
        assert isinstance(last, events.TeardownEnded) and last.swept == swept
        assert [each.text for each in before if isinstance(each, events.Noticed)] == reported


def test_tensorboard_is_reported_not_as_a_task(desk: Desk) -> None:
    desk.reports.take(Started(TASK, 7, 1, "spawn"))
    assert not desk.queue
    for _ in range(2):
        desk.reports.take(Listening(TASK))
    desk.exits(TASK, 3)
    *served, gone, notice = desk.queue
    assert [each.type for each in served] == ["tensorboard_serves", "noticed", "tensorboard_serves"]
    assert isinstance(gone, events.TensorBoardServes) and gone.url is None
    assert isinstance(notice, events.Noticed)
    assert "TensorBoard ended (exit 3); the training continues" in notice.text
    desk.tear_down(TeardownReason.FINISHED)
    desk.queue.clear()
    desk.exits(TASK, 3)
    assert not desk.queue


def test_versions_are_recorded_once_and_quick_saves_up_to_a_limit(desk: Desk) -> None:
    def report(text: str) -> list[Event]:
        desk.queue.clear()
        desk.progress(text)
        return list(desk.queue)

    versions = '{"phase": "starting", "versions": {"tensorflow": "2.21.0"}}'
    (found,) = report(versions)
    assert isinstance(found, events.VersionsFound) and found.versions == {"tensorflow": "2.21.0"}
    assert report(versions) == []
    (saved,) = report('{"saved": {"name": "ckpt-1", "seconds": 1.5}}')
    assert isinstance(saved, events.CheckpointSaved) and (saved.name, saved.seconds) == ("ckpt-1", 1.5)
    assert saved == parse_event(event_line(saved))
    for invalid in (
        '{"saved": {"name": "", "seconds": 1}}',
        '{"saved": {"name": "\\ud800", "seconds": 1}}',
        '{"saved": [], "versions": {"tensorflow": 2}}',
        '{"versions": {"\\ud800": "x"}}',
    ):
        assert report(invalid) == []
    quick = [report('{"saved": {"name": "a", "seconds": 0}}') for _ in range(100)]
    assert 10 < sum(map(len, quick)) < 90
