"""A run as others see it: the fold of its events, whether it lives, how it ended."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from run_records import make_run, one_task, view_of

from orchestrator import api, events
from orchestrator.errors import RunLost
from orchestrator.events import event_line
from orchestrator.runs import catalog
from orchestrator.runs.reader import EventTail, RunView

READY = events.TaskReady(at=1, mono=1, task="worker:0")


def test_a_torn_line_waits_for_its_rest(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = EventTail(path)
    assert tail.read() == []
    line = event_line(READY)
    with path.open("ab", buffering=0) as out:
        for cut in range(1, len(line)):
            out.write(line[cut - 1 : cut])
            assert tail.read() == []
        out.write(line[-1:] + line + line[:10])
        assert tail.read() == [READY, READY]
        assert tail.read() == []
        out.write(line[10:])
        assert tail.read() == [READY]


@pytest.mark.parametrize("junk", [b"\n", b"{}\n", b"\xff\xfe\n", b'{"type": "from the future"}\n', b"[1\n"])
def test_a_damaged_line_costs_that_line_alone(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(event_line(READY) + junk + event_line(READY))
    assert EventTail(path).read() == [READY, READY]


def test_events_of_tasks_that_nobody_planned_are_passed_over() -> None:
    store = make_run()
    view = view_of(store.paths)
    store.append(READY)
    for event in one_task(5.0):
        store.append(event)
    view.refresh()
    assert view.state.tasks["worker:0"].phase == "running"
    store.close()


def test_an_end_of_a_kind_from_the_future_is_passed_over() -> None:
    store = make_run()
    view = view_of(store.paths)
    store.append(events.RunEndedEvent(at=1, mono=1, outcome="vanished", exit_code=0))
    view.refresh()
    assert view.state.phase == "starting"
    store.close()


def test_a_run_without_a_supervisor_is_lost() -> None:
    store = make_run()
    began = time.monotonic()
    for event in one_task(began + 3):
        store.append(event)
    view = view_of(store.paths)
    live = api.status_of(view)
    assert (live.run.state, live.tasks[0].state) == ("running", "running")
    store.close()
    lost = api.status_of(view)
    assert (lost.run.state, lost.tasks[0].state) == ("lost", "lost")
    # Nobody knows how long it lived; surely not until now and on.
    assert lost.run.uptime_s == pytest.approx(3, abs=1)
    assert lost.tasks[0].uptime_s == 0.0
    assert api.status_of(view_of(store.paths)).run.uptime_s == lost.run.uptime_s


def test_a_lost_runs_result_is_125_and_written_once() -> None:
    store = make_run()
    for event in one_task(1.0):
        store.append(event)
    store.close()
    view = view_of(store.paths)
    made_up = api.result_of(view)
    assert (made_up.outcome, made_up.exit_code) == ("lost", 125)
    assert not store.paths.result.exists()
    with pytest.raises(RunLost):
        api.Run(view).wait()
    catalog.close_lost_runs()
    written = view.result()
    assert written is not None
    assert (written.outcome, written.exit_code) == ("lost", 125)
    assert [task.state for task in written.tasks] == ["lost"]
    before = store.paths.result.stat()
    catalog.close_lost_runs()
    assert store.paths.result.stat().st_mtime_ns == before.st_mtime_ns


def test_a_live_run_is_never_closed_as_lost() -> None:
    store = make_run()
    catalog.close_lost_runs()
    assert catalog.sweep_lost_runs() == []
    assert not store.paths.result.exists()
    store.close()


def test_a_run_that_has_ended_stays_as_it_ended() -> None:
    store = make_run()
    for event in one_task(1.0):
        store.append(event)
    store.append(events.RunEndedEvent(at=1, mono=2.0, outcome="failed", exit_code=3))
    view = view_of(store.paths)
    store.close()
    status = api.status_of(view)
    assert (status.run.state, status.run.exit_code) == ("failed", 3)


def test_the_sample_of_a_run_that_has_ended_is_none() -> None:
    store = make_run()
    store.write_sample(at=1, mono=1, tasks={"worker:0": {"cpu_percent": 1.0, "memory_bytes": 2}})
    view = view_of(store.paths)
    view.refresh()
    assert view.sample()["worker:0"]["memory_bytes"] == 2
    store.paths.sample.write_text("{half")
    assert view.sample() == {}
    store.write_sample(at=1, mono=1, tasks={"worker:0": {"cpu_percent": 1.0, "memory_bytes": 2}})
    store.close()
    view.refresh()
    assert view.sample() == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": "x"}', "\0"])
def test_an_unreadable_record_is_no_run(text: str) -> None:
    store = make_run()
    store.paths.record.write_text(text)
    store.close()
    assert RunView.open(store.paths) is None
