"""Messages of an agent become events, in the order that shows the first failure."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator

import pytest
from making import JOB
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
from orchestrator.links import agent_link
from orchestrator.store.runs.writer import RunStore
from orchestrator.supervisor.agent_reports import AgentReports
from orchestrator.supervisor.control_orders import StackRequests
from orchestrator.supervisor.tensorboard_task import TensorBoardTask

RUN = "run-1"
BOARD = TensorBoard(python="/usr/bin/python3", program="/serve.py")
OWN_ERROR = 'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\nValueError: boom\n'
PEER_ERROR = OWN_ERROR.replace(
    "ValueError: boom", "tensorflow.python.framework.errors_impl.UnavailableError: Socket closed"
)


class Logs:
    """Records which tasks' logs were finished."""

    def __init__(self) -> None:
        self.finished: list[str] = []

    def finish(self, task: str) -> None:
        self.finished.append(task)

    def process_start(self, task: str) -> int:
        return 0


class Desk:
    """The reports on a run with a real directory and lifecycle. Events that a test applies change only the state."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self.queue: deque[Event] = deque()
        self.throttle = ProgressThrottle()
        self.logs = Logs()
        self.lifecycle = Lifecycle(JOB, RUN, 0.0)
        self.reports = AgentReports(
            self.lifecycle,
            store,
            self.throttle,
            self.logs,  # type: ignore[arg-type]
            StackRequests(lambda tasks, native: tasks),
            TensorBoardTask(BOARD, NetworkOption.HOST, store, self.queue),
            None,
            self.queue,
        )
        for event in one_task(1.0):
            self.state = apply(self.state, event)

    @property
    def state(self) -> RunState:
        return self.lifecycle.state

    @state.setter
    def state(self, state: RunState) -> None:
        self.lifecycle.state = state

    def exits(self, task: str, code: int, peers: dict[str, str] | None = None) -> events.TaskExited:
        self.reports.take(
            agent_link.Exited(
                run_id=RUN,
                type="exited",
                task=task,
                exit_code=code,
                signal=None,
                order=0,
                mono=1.0,
                peers=peers or {},
            )
        )
        reported = self.queue[-1]
        assert isinstance(reported, events.TaskExited)
        return reported

    def tear_down(self, reason: TeardownReason) -> None:
        self.state = apply(self.state, events.TeardownBegan(at=2, mono=2, reason=reason, grace_s=0.5))

    def is_empty(self, swept: int) -> list[str]:
        """Report the end of the last task and return the texts of the notices."""
        self.reports.take(agent_link.Empty(run_id=RUN, type="empty", swept=swept))
        *before, last = self.queue
        assert isinstance(last, events.TeardownEnded) and last.swept == swept
        return [event.text for event in before if isinstance(event, events.Noticed)]


@pytest.fixture
def desk() -> Iterator[Desk]:
    store = make_run()
    yield Desk(store)
    store.close()


def test_agent_is_lost_if_ports_cannot_be_held(desk: Desk) -> None:
    desk.reports.take(agent_link.HoldFailed(run_id=RUN, type="hold_failed", reason="Too many open files"))
    (lost,) = desk.queue
    assert isinstance(lost, events.AgentLost) and lost.reason == "no ports: Too many open files"


def test_invalid_progress_is_ignored(desk: Desk) -> None:
    for progress in ("[]", "nonsense", '{"step": "many"}'):
        desk.reports.take(
            agent_link.ProgressMade(run_id=RUN, type="progress", task="worker:0", progress=progress)
        )
    assert desk.throttle.due() is None
    assert [event.type for event in (desk.exits("worker:0", 0),)] == ["task_exited"]
    assert len(desk.queue) == 1


def test_progress_is_in_the_sample_before_its_event_is_due(desk: Desk) -> None:
    """An event is written once a second; the table shows newer progress."""

    def report(step: int) -> None:
        made = agent_link.ProgressMade(
            run_id=RUN, type="progress", task="worker:0", progress=f'{{"step": {step}}}'
        )
        desk.reports.take(made)

    def shown_step() -> object:
        desk.reports.write_sample()
        return json.loads(desk.store.paths.sample.read_text())["progress"]["worker:0"]["step"]

    report(1)
    desk.throttle.take(desk.reports.due or 0.0)
    assert shown_step() == 1 and desk.reports.due is None
    report(2)
    until(lambda: shown_step() == 2)


def test_delayed_progress_is_reported_before_the_exit(desk: Desk) -> None:
    message = agent_link.ProgressMade(run_id=RUN, type="progress", task="worker:0", progress='{"step": 7}')
    desk.reports.take(message)
    desk.exits("worker:0", 0)
    first, second = desk.queue
    assert isinstance(first, events.TaskProgressed) and first.progress.step == 7
    assert isinstance(second, events.TaskExited) and desk.logs.finished == ["worker:0"]


def test_log_tails_of_peers_are_read_at_the_first_failure_only(desk: Desk) -> None:
    for index, words in enumerate((PEER_ERROR, OWN_ERROR, OWN_ERROR)):
        desk.store.paths.task_log(f"worker:{index}").write_text(words)
    assert desk.exits("worker:1", 0, {"worker:0": "R"}).peer_symptoms == {}
    first = desk.exits("worker:0", 1, {"worker:2": "R"})
    assert first.symptom is not None and first.symptom.kind is SymptomKind.COLLATERAL
    assert first.peer_symptoms["worker:2"].kind is SymptomKind.OWN
    assert desk.exits("worker:0", 1, {"worker:2": "R"}).peer_symptoms == {}


def test_few_of_many_peers_are_read_first_those_with_an_exception(desk: Desk) -> None:
    many = [f"worker:{index}" for index in range(1, 300)]
    for peer in many:
        desk.store.paths.task_log(peer).write_text(OWN_ERROR)
    desk.store.paths.task_log("worker:0").write_text(PEER_ERROR)
    exception = desk.store.paths.task_exception(many[-1])
    exception.parent.mkdir(exist_ok=True)
    exception.write_text(json.dumps({"type": "KeyError", "message": "'x'", "text": "KeyError: 'x'"}))
    found = desk.exits("worker:0", 1, dict.fromkeys(many, "R")).peer_symptoms
    assert found[many[-1]].exception == "KeyError: 'x'"
    assert len(found) == 100


def test_log_tails_of_peers_are_not_read_after_a_failure_of_its_own(desk: Desk) -> None:
    for index in range(2):
        desk.store.paths.task_log(f"worker:{index}").write_text(OWN_ERROR)
    failed = desk.exits("worker:0", 1, {"worker:1": "R"})
    assert failed.symptom is not None and failed.symptom.exception == "ValueError: boom"
    assert failed.peer_symptoms == {}


def test_usage_is_written_when_nothing_else_is_waiting(desk: Desk) -> None:
    usage = agent_link.Usage(cpu_percent=5.0, memory_bytes=7)
    desk.reports.take(agent_link.Sampled(run_id=RUN, type="sample", mono=1.0, tasks={"worker:0": usage}))
    assert not desk.store.paths.sample.exists()
    desk.reports.write_sample()
    assert json.loads(desk.store.paths.sample.read_text())["tasks"]["worker:0"]["memory_bytes"] == 7
    desk.store.paths.sample.unlink()
    assert desk.reports.due is None
    desk.reports.write_sample()
    assert not desk.store.paths.sample.exists()  # no new usage


def test_usage_of_many_hosts_is_written_at_intervals(desk: Desk) -> None:
    for index in range(2):
        usage = agent_link.Usage(cpu_percent=5.0, memory_bytes=index)
        sampled = agent_link.Sampled(run_id=RUN, type="sample", mono=1.0, tasks={f"worker:{index}": usage})
        desk.reports.take(sampled)
        desk.reports.write_sample()
    assert json.loads(desk.store.paths.sample.read_text())["tasks"].keys() == {"worker:0"}
    assert desk.reports.due is not None

    def both_are_written() -> bool:
        desk.reports.write_sample()
        return len(json.loads(desk.store.paths.sample.read_text())["tasks"]) == 2

    until(both_are_written)


def test_full_disk_is_reported_after_the_exit(desk: Desk) -> None:
    desk.state = apply(desk.state, desk.exits("worker:0", 1))
    desk.reports.take(
        agent_link.DiskFull(
            run_id=RUN, type="disk_full", task="worker:0", reason="/x: No space left on device"
        )
    )
    state = apply(desk.state, desk.queue[-1])
    assert state.tasks["worker:0"].full_disk == "/x: No space left on device"
    again = events.TaskRestartPlanned(at=2, mono=2, task="worker:0", delay_s=1, text="again")
    waits = apply(apply(desk.state, again), desk.queue[-1]).tasks["worker:0"]
    assert (
        waits.full_disk is None
        and waits.before_restart is not None
        and waits.before_restart.full_disk is not None
    )
    restarted = events.TaskStarted(at=3, mono=3, task="worker:0", pid=1, start_ticks=1)
    late = apply(apply(apply(desk.state, again), restarted), desk.queue[-1])
    assert late.tasks["worker:0"].full_disk is None


def test_log_tails_of_peers_are_not_read_during_teardown(desk: Desk) -> None:
    desk.store.paths.task_log("worker:0").write_text(PEER_ERROR)
    desk.store.paths.task_log("worker:1").write_text(OWN_ERROR)
    desk.tear_down(TeardownReason.REQUEST)
    assert desk.exits("worker:0", 1, {"worker:1": "R"}).peer_symptoms == {}


@pytest.mark.parametrize(
    ("reason", "swept", "reported"),
    [
        (TeardownReason.FINISHED, 0, []),
        (TeardownReason.FINISHED, 1, ["killed 1 process that the tasks had left running"]),
        (TeardownReason.FINISHED, 3, ["killed 3 processes that the tasks had left running"]),
        (TeardownReason.REQUEST, 3, []),
    ],
)
def test_remaining_processes_of_a_finished_run_are_reported(
    desk: Desk, reason: TeardownReason, swept: int, reported: list[str]
) -> None:
    desk.tear_down(reason)
    assert desk.is_empty(swept) == reported


def test_tensorboard_is_not_reported_as_a_task(desk: Desk) -> None:
    start = agent_link.Started(run_id=RUN, type="started", task=TASK, pid=7, start_ticks=1)
    desk.reports.take(start)
    assert not desk.queue
    assert desk.exits("worker:0", 1, {TASK: "S", "worker:1": "R"}).peers == {"worker:1": "R"}


def test_start_and_end_of_tensorboard_are_reported(desk: Desk) -> None:
    for _ in range(2):
        desk.reports.take(agent_link.Listening(run_id=RUN, type="listening", task=TASK))
    desk.reports.take(_board_exits())
    *served, gone, notice = desk.queue
    assert [event.type for event in served] == ["tensorboard_serves", "noticed", "tensorboard_serves"]
    assert isinstance(gone, events.TensorBoardServes) and gone.url is None
    assert isinstance(notice, events.Noticed)
    assert "TensorBoard ended (exit 3); the training continues" in notice.text


def test_end_of_tensorboard_in_teardown_is_not_reported(desk: Desk) -> None:
    desk.tear_down(TeardownReason.FINISHED)
    desk.reports.take(_board_exits())
    assert not desk.queue


def _board_exits() -> agent_link.Exited:
    return agent_link.Exited(
        run_id=RUN, type="exited", task=TASK, exit_code=3, signal=None, order=0, mono=1.0, peers={}
    )


def test_versions_are_recorded_once_and_quick_saves_up_to_a_limit(desk: Desk) -> None:
    def report(text: str) -> list[Event]:
        desk.queue.clear()
        said = agent_link.ProgressMade(run_id=RUN, type="progress", task="worker:0", progress=text)
        desk.reports.take(said)
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
        '{"saved": {"name": "x", "seconds": -1}}',
        '{"saved": {"name": "\\ud800", "seconds": 1}}',
        '{"saved": [], "versions": {"tensorflow": 2}}',
        '{"versions": {"\\ud800": "x"}}',
        '["saved"]',
        '{"saved": ',
    ):
        assert report(invalid) == []
    quick = [report('{"saved": {"name": "a", "seconds": 0}}') for _ in range(100)]
    assert 10 < sum(map(len, quick)) < 90
