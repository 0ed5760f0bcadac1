"""Runs on several hosts: the host in the tables, in the status document and in the report."""

from __future__ import annotations

from dataclasses import replace

import pytest
from moments import moment, planned

from orchestrator.client.view.report import end_lines
from orchestrator.client.view.status_document import host_statuses, task_statuses
from orchestrator.client.view.tables import footer_lines
from orchestrator.core.state import events
from orchestrator.core.state.events import Event
from orchestrator.core.state.fold import apply
from orchestrator.core.state.result import Cause, CauseKind, FirstFailure, HostEnd, RunResult, TaskEnd
from orchestrator.core.state.state import RunState


def on_hosts(*hosts: str | None, more: tuple[Event, ...] = ()) -> RunState:
    """A run with a worker on each of these hosts."""
    tasks = tuple(replace(planned(f"worker:{index}"), host=host) for index, host in enumerate(hosts))
    joined: list[Event] = [
        events.HostJoined(at=0, mono=5, host=host, address="10.0.0.1", cores=8, gpus=("A100",))
        for host in dict.fromkeys(filter(None, hosts))
    ]
    state = RunState()
    for event in (*joined, events.AttemptPlanned(at=0, mono=10, attempt=1, tasks=tasks), *more):
        state = apply(state, event)
    return state


SILENT = events.HostSilent(at=0, mono=20, host="b", seconds=3)
LOST = events.HostLost(at=0, mono=30, host="b", reason="it has not answered for 10s")


@pytest.mark.parametrize(("hosts", "shown"), [(("a", "b"), True), (("a", "a"), False), ((None, None), False)])
def test_host_is_a_column_if_there_are_several(hosts: tuple[str | None, ...], shown: bool) -> None:
    titles = footer_lines(moment(on_hosts(*hosts)), 200, 24, colour=False)[1]
    assert ("HOST" in titles) == shown


def test_silent_and_lost_hosts_are_marked() -> None:
    rows = footer_lines(moment(on_hosts("a", "b", more=(SILENT,))), 200, 24, colour=False)
    assert "b (silent)" in rows[3] and "silent" not in rows[2]
    rows = footer_lines(moment(on_hosts("a", "b", more=(SILENT, LOST))), 200, 24, colour=False)
    assert "b (lost)" in rows[3]


def test_status_document_has_the_hosts() -> None:
    state = on_hosts("a", "b", more=(SILENT,))
    assert [(task.host, task.host_state) for task in task_statuses(state, {}, 21.0)] == [
        ("a", "joined"),
        ("b", "silent"),
    ]
    first, second = host_statuses(state, 21.0)
    assert (first.state, first.silent_s, first.cores, first.gpus) == ("joined", None, 8, ("A100",))
    assert (second.state, second.silent_s) == ("silent", 4.0)
    assert host_statuses(on_hosts("b", more=(LOST,)), 31.0)[0].reason == "it has not answered for 10s"
    assert not host_statuses(on_hosts(None), 0)


def ended(cause: Cause, first: FirstFailure | None) -> RunResult:
    return RunResult(
        run_id="digits-1",
        outcome="failed",
        exit_code=1,
        attempts=1,
        cause=cause,
        first_failure=first,
        detection_s=None,
        teardown_s=None,
        tasks=(
            TaskEnd(task="worker:0", state="failed", exit_code=1, signal=None, end="failed", host="a"),
            TaskEnd(task="worker:1", state="lost", exit_code=None, signal=None, end="lost with b", host="b"),
        ),
        hosts=(
            HostEnd(host="a", address="10.0.0.1", state="joined", cores=8),
            HostEnd(host="b", address="10.0.0.2", state="lost", cores=8, reason="gone"),
        ),
    )


FIRST = FirstFailure(
    task="worker:0",
    exit_code=1,
    signal=None,
    exception="ValueError: boom",
    log="/logs/worker-0.log",
    advice=None,
    lines=("a line",),
)


def test_report_names_the_host_of_the_failed_task() -> None:
    lines = end_lines(
        ended(Cause(task="worker:0", kind=CauseKind.EXITED, text="exit 1"), FIRST), None, colour=False
    )
    assert "  host           a" in lines and lines[-1] == "orch: worker:0 failed: ValueError: boom"
    alone = ended(Cause(task="worker:0", kind=CauseKind.EXITED, text="exit 1"), FIRST)
    alone = alone.model_copy(update={"hosts": alone.hosts[:1]})
    assert not any(line.startswith("  host ") for line in end_lines(alone, None, colour=False))


@pytest.mark.parametrize("first", [FIRST, None])
def test_report_of_a_lost_host(first: FirstFailure | None) -> None:
    """The lines of a task that lost its peers say nothing about the cause."""
    text = "b was lost: gone\x1b[2J; worker:1 ran on it"
    lines = end_lines(ended(Cause(task=None, kind=CauseKind.HOST, text=text), first), None, colour=False)
    assert lines[-1] == "orch: b was lost: gone; worker:1 ran on it"
    assert "  other tasks    worker:1: lost with b" in lines
    assert not any("a line" in line for line in lines)
