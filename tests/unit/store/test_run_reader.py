"""A run as clients see it: the fold of its events, its liveness and its end."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from run_records import make_run, one_task, view_of

from orchestrator.client import api
from orchestrator.core.errors import RunLost
from orchestrator.core.state import events
from orchestrator.core.state.events import Progress, event_line
from orchestrator.core.state.fold import apply
from orchestrator.core.state.state import RunState
from orchestrator.store.runs import event_file, lost_runs
from orchestrator.store.runs.event_file import EventTail
from orchestrator.store.runs.paths import RunPaths
from orchestrator.store.runs.reader import RunView

READY = events.TaskReady(at=1, mono=1, task="worker:0")


def test_incomplete_line_waits_for_its_rest(tmp_path: Path) -> None:
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
def test_damaged_line_does_not_affect_other_lines(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(event_line(READY) + junk + event_line(READY))
    assert EventTail(path).read() == [READY, READY]


def progressed(step: int, task: int = 0) -> events.TaskProgressed:
    made = events.Progress(phase='"}}', step=step, loss=0.5, metrics={"f1": 0.25})
    return events.TaskProgressed(at=1.5, mono=step, task=f"worker:{task}", progress=made)


def written(path: Path, made: Iterable[events.Event]) -> Path:
    path.write_bytes(b"".join(event_line(event) for event in made))
    return path


def test_replaced_progress_is_skipped(tmp_path: Path) -> None:
    made: list[events.Event] = [progressed(step, task) for step in range(100) for task in range(3)]
    made.insert(150, READY)
    path = written(tmp_path / "events.jsonl", made)
    tail = EventTail(path)
    assert tail.read() == [*made[:3], READY, *made[-3:]]
    with path.open("ab") as out:
        out.write(event_line(progressed(100)))
    assert tail.read() == [progressed(100)]


def in_phase(phase: str, step: int, task: int = 0) -> events.TaskProgressed:
    made = progressed(step, task)
    return made.model_copy(update={"progress": made.progress.model_copy(update={"phase": phase})})


@pytest.mark.parametrize("block", [1, 1 << 20])
def test_progress_that_begins_a_phase_or_ends_a_silence_is_read(
    tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timeline is drawn from it. The tasks' phases are independent, and are remembered between two reads."""
    monkeypatch.setattr(event_file, "_BLOCK_BYTES", block)
    silence = events.DeadlineReached(at=1, mono=1, deadline="stall_limit", quiet_s={"worker:0": 5.0})
    made: list[events.Event] = [in_phase("importing", 0)]
    made += [in_phase("training", step, task) for step in range(20) for task in range(2)]
    made += [
        in_phase("evaluating", 1),
        in_phase("training", 21),
        silence,
        *(in_phase("training", step) for step in (22, 23)),
    ]
    path = written(tmp_path / "events.jsonl", made)
    read = EventTail(path).read()
    needed = [made[0], *made[1:3], *made[-5:-1]]
    assert [event for event in read if event in needed] == needed
    assert read[-1] == made[-1] and (block == 1 or len(read) < 12)


def test_phase_is_remembered_between_two_reads(tmp_path: Path) -> None:
    path = written(tmp_path / "events.jsonl", [in_phase("training", 1)])
    tail = EventTail(path)
    tail.read()
    made = [in_phase("training", step) for step in range(2, 5)]
    with path.open("ab") as out:
        out.write(b"".join(event_line(event) for event in made))
    assert tail.read() == made[-1:]


@pytest.mark.parametrize("junk", [b"}\n", b'"step":[],"steps":1}}\n'])
def test_damaged_progress_does_not_hide_the_previous_one(tmp_path: Path, junk: bytes) -> None:
    path = written(tmp_path / "events.jsonl", [progressed(1), progressed(2)])
    line = event_line(progressed(3))
    path.write_bytes(path.read_bytes() + line[: line.index(b'"step"')] + junk)
    assert EventTail(path).read() == [progressed(1), progressed(2)]


def test_progress_in_a_different_json_style_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "events.jsonl", [progressed(1)])
    odd = b'{"type": "task_progressed", "task": "worker:0", "progress": {}, "at": 1, "mono": 2}\n'
    path.write_bytes(path.read_bytes() + odd + event_line(READY))
    read = EventTail(path).read()
    assert read == [
        progressed(1),
        events.TaskProgressed(at=1, mono=2, task="worker:0", progress=events.Progress()),
        READY,
    ]


@pytest.mark.parametrize("block", [1, 300, 5_000, 1 << 20])
def test_skipping_progress_does_not_change_the_state(
    tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any block size: lines longer than a block, plans and starts between progress, reads at random times."""
    monkeypatch.setattr(event_file, "_BLOCK_BYTES", block)
    chance = random.Random(block)
    made: list[events.Event] = []
    for step in range(400):
        made.append(progressed(step))
        if chance.random() < 0.05:
            made += one_task(float(step))
        if chance.random() < 0.05:
            made.append(events.Noticed(at=1, mono=step, text="a long word " * 100 + str(step)))
    made += one_task(1000.0) if chance.random() < 0.5 else [progressed(1000)]
    path = written(tmp_path / "whole", made)
    data, grown = path.read_bytes(), tmp_path / "events.jsonl"
    tail, read = EventTail(grown), []
    with grown.open("ab", buffering=0) as out:
        while data:
            cut = chance.randrange(1, 40_000)
            out.write(data[:cut])
            data = data[cut:]
            read += tail.read()
    assert without_since(state_of(read)) == without_since(state_of(made))
    assert [e for e in read if isinstance(e, events.Noticed)] == [
        e for e in made if isinstance(e, events.Noticed)
    ]


def without_since(state: RunState) -> RunState:
    """Remove the start of each phase, which depends on the progress events that were skipped."""
    return replace(state, tasks=state.tasks.mapped(lambda task: replace(task, since_mono=None)))


def state_of(made: Iterable[events.Event]) -> RunState:
    state = RunState()
    for event in made:
        if isinstance(event, events.TaskProgressed) and event.task not in state.tasks:
            continue
        state = apply(state, event)
    return state


def test_most_progress_lines_of_a_long_run_are_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []

    def counting(line: bytes) -> events.Event:
        parsed.append(line)
        return events.parse_event(line)

    monkeypatch.setattr(event_file, "parse_event", counting)
    path = written(tmp_path / "events.jsonl", [progressed(step, step % 8) for step in range(20_000)])
    assert len(EventTail(path).read()) == len(parsed)
    blocks = path.stat().st_size // (1 << 20) + 1
    assert len(parsed) <= 8 * (blocks + 1)


def test_events_of_unplanned_tasks_are_ignored() -> None:
    store = make_run()
    view = view_of(store.paths)
    store.append(READY)
    for event in one_task(5.0):
        store.append(event)
    view.refresh()
    assert view.state.tasks["worker:0"].phase == "running"
    store.close()


def test_end_with_an_unknown_outcome_is_ignored() -> None:
    store = make_run()
    view = view_of(store.paths)
    store.append(events.RunEndedEvent(at=1, mono=1, outcome="vanished", exit_code=0))
    view.refresh()
    assert view.state.phase == "starting"
    store.close()


def test_run_without_a_supervisor_is_lost() -> None:
    store = make_run()
    view = view_of(store.paths)
    for event in one_task(view.record.started_mono + 3):
        store.append(event)
    live = api.status_of(view)
    assert (live.run.state, live.tasks[0].state) == ("running", "running")
    store.close()
    lost = api.status_of(view)
    assert (lost.run.state, lost.tasks[0].state) == ("lost", "lost")
    # The time of its end is unknown, but must not be the current time.
    assert lost.run.uptime_s == 3.0
    assert lost.tasks[0].uptime_s == 0.0
    assert api.status_of(view_of(store.paths)).run.uptime_s == lost.run.uptime_s


def test_result_of_a_lost_run_is_125_and_written_once() -> None:
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
    lost_runs.close_lost_runs()
    written = view.result()
    assert written is not None
    assert (written.outcome, written.exit_code) == ("lost", 125)
    assert [task.state for task in written.tasks] == ["lost"]
    before = store.paths.result.stat()
    lost_runs.close_lost_runs()
    assert store.paths.result.stat().st_mtime_ns == before.st_mtime_ns


def test_live_run_is_not_closed_as_lost() -> None:
    store = make_run()
    lost_runs.close_lost_runs()
    assert lost_runs.sweep_lost_runs() == []
    assert not store.paths.result.exists()
    store.close()


def test_ended_run_keeps_its_outcome() -> None:
    store = make_run()
    for event in one_task(1.0):
        store.append(event)
    store.append(events.RunEndedEvent(at=1, mono=2.0, outcome="failed", exit_code=3))
    view = view_of(store.paths)
    store.close()
    status = api.status_of(view)
    assert (status.run.state, status.run.exit_code) == ("failed", 3)


def test_sample_of_an_ended_run_is_empty() -> None:
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


def test_progress_of_the_sample_is_newer_than_that_of_the_events() -> None:
    store = make_run()
    for event in one_task(1.0):
        store.append(event)
    view = view_of(store.paths)
    view.refresh()
    (task,) = view.state.tasks
    for attempt, step in ((1, 7), (2, None)):
        store.write_sample(at=1, mono=1, tasks={}, progress={task: Progress(step=7)}, attempt=attempt)
        assert view.latest()[0].tasks[task].progress.step == step, "another attempt's does not count"
    assert view.state.tasks[task].progress.step is None
    store.close()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": "x"}', "\0"])
def test_unreadable_record_is_restored_from_the_first_line_of_the_events(text: str) -> None:
    store = make_run()
    record = view_of(store.paths).record
    store.paths.record.write_text(text)
    store.close()
    view = view_of(store.paths)
    assert view.record == record
    assert "run.json is damaged" in view.remarks()[0]


def test_missing_record_is_restored_from_the_directory_name(tmp_path: Path) -> None:
    store = make_run(started_at=86_400.0)
    store.paths.record.unlink()
    for event in one_task(5.0):
        store.append(event)
    lines = store.paths.events.read_bytes().splitlines(keepends=True)
    store.paths.events.write_bytes(b"".join(lines[1:]))
    view = view_of(store.paths)
    assert (view.record.id, view.record.name, view.record.started_mono) == (store.paths.run_id, "job", 5.0)
    assert view.is_live
    store.close()
    assert not view.is_live
    (tmp_path / "anything").mkdir()
    assert RunView.open(RunPaths(tmp_path / "anything")) is None
