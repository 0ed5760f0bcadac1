"""A run as clients see it: the fold of its events, its liveness and its end."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from making import event, progressed, run_result, task_end
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
from orchestrator.store.runs.writer import RunStore

READY = event(events.TaskReady, 1.0, task=0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def step(number: int, task: int = 0, phase: str = '"}}') -> events.TaskProgressed:
    """Progress with texts that look like JSON."""
    return progressed(task, float(number), phase=phase, step=number, loss=0.5, metrics={"f1": 0.25})


def write(path: Path, made: Iterable[events.Event], *, more: bool = False) -> Path:
    with path.open("ab" if more else "wb") as out:
        out.write(b"".join(event_line(each) for each in made))
    return path


# -- lines of the file


def test_incomplete_line_waits_for_its_rest(path: Path) -> None:
    tail = EventTail(path)
    assert tail.read() == []
    line = event_line(READY)
    with path.open("ab", buffering=0) as out:
        for cut in range(1, len(line)):
            out.write(line[cut - 1 : cut])
            assert tail.read() == []
        out.write(line[-1:] + line + line[:10])
        assert (tail.read(), tail.read()) == ([READY, READY], [])
        out.write(line[10:])
        assert tail.read() == [READY]


def test_damaged_line_of_progress_does_not_affect_other_lines(path: Path) -> None:
    """Other damage: test_any_document.py."""
    line = event_line(step(3))
    for junk in (b"}\n", b'"step":[],"steps":1}}\n'):
        write(path, [step(1), step(2)])
        path.write_bytes(path.read_bytes() + line[: line.index(b'"step"')] + junk)
        assert EventTail(path).read() == [step(1), step(2)], "the last whole progress is not skipped"


def test_progress_in_a_different_json_style_is_read(path: Path) -> None:
    write(path, [step(1)])
    odd = b'{"type": "task_progressed", "task": "worker:0", "progress": {}, "at": 1, "mono": 2}\n'
    path.write_bytes(path.read_bytes() + odd + event_line(READY))
    made = events.TaskProgressed(at=1, mono=2, task="worker:0", progress=Progress())
    assert EventTail(path).read() == [step(1), made, READY]


# -- progress that is skipped


def test_replaced_progress_is_skipped(path: Path) -> None:
    made: list[events.Event] = [step(number, task) for number in range(100) for task in range(3)]
    made.insert(150, READY)
    tail = EventTail(write(path, made))
    assert tail.read() == [*made[:3], READY, *made[-3:]]
    # The phase is remembered between two reads.
    more = [step(number) for number in range(100, 104)]
    write(path, more, more=True)
    assert tail.read() == more[-1:]


@pytest.mark.parametrize("block", [1, 1 << 20])
def test_progress_that_begins_a_phase_or_ends_a_silence_is_read(
    path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timeline is drawn from it. The tasks' phases are independent."""
    monkeypatch.setattr(event_file, "_BLOCK_BYTES", block)
    silence = event(events.DeadlineReached, 1.0, deadline="stall_limit", quiet_s={"worker:0": 5.0})
    made: list[events.Event] = [step(0, phase="importing")]
    made += [step(number, task, "training") for number in range(20) for task in range(2)]
    made += [step(1, phase="evaluating"), step(21, phase="training"), silence]
    made += [step(number, phase="training") for number in (22, 23)]
    read = EventTail(write(path, made)).read()
    needed = [made[0], *made[1:3], *made[-5:-1]]
    assert [each for each in read if each in needed] == needed
    assert read[-1] == made[-1] and (block == 1 or len(read) < 12)


@pytest.mark.parametrize("block", [1, 300, 5_000, 1 << 20])
def test_skipping_progress_does_not_change_the_state(
    path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any block size: lines longer than a block, plans and starts between progress, reads at random times."""
    monkeypatch.setattr(event_file, "_BLOCK_BYTES", block)
    chance = random.Random(block)
    made: list[events.Event] = []
    for number in range(400):
        made.append(step(number))
        if chance.random() < 0.05:
            made += one_task(float(number))
        if chance.random() < 0.05:
            made.append(event(events.Noticed, float(number), text="a long word " * 100 + str(number)))
    made += one_task(1000.0) if chance.random() < 0.5 else [step(1000)]
    data = write(path.with_name("whole"), made).read_bytes()
    tail, read = EventTail(path), []
    with path.open("ab", buffering=0) as out:
        while data:
            cut = chance.randrange(1, 40_000)
            out.write(data[:cut])
            data = data[cut:]
            read += tail.read()
    assert state_of(read) == state_of(made)
    assert notices(read) == notices(made)


def notices(made: Iterable[events.Event]) -> list[events.Event]:
    return [each for each in made if isinstance(each, events.Noticed)]


def state_of(made: Iterable[events.Event]) -> RunState:
    """The state without the start of each phase, which depends on the progress that was skipped."""
    state = RunState()
    for each in made:
        if not isinstance(each, events.TaskProgressed) or each.task in state.tasks:
            state = apply(state, each)
    return state.with_tasks(replace(task, since_mono=None) for task in state.tasks.values())


def test_most_progress_lines_of_a_long_run_are_not_parsed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []

    def counting(line: bytes) -> events.Event:
        parsed.append(line)
        return events.parse_event(line)

    monkeypatch.setattr(event_file, "parse_event", counting)
    write(path, [step(number, number % 8) for number in range(20_000)])
    assert len(EventTail(path).read()) == len(parsed)
    assert len(parsed) <= 8 * (path.stat().st_size // (1 << 20) + 2)


# -- the run


@pytest.fixture
def store() -> Iterator[RunStore]:
    """A live run that has begun."""
    with closing(make_run()) as made:
        yield made


def begin(store: RunStore, mono: float = 1.0) -> RunView:
    for each in one_task(mono):
        store.append(each)
    view = view_of(store.paths)
    view.refresh()
    return view


def test_impossible_events_are_ignored(store: RunStore) -> None:
    """An event of an unplanned task, and an end with an unknown outcome."""
    view = view_of(store.paths)
    store.append(READY)
    store.append(events.RunEndedEvent(at=1, mono=1, outcome="vanished", exit_code=0))
    view.refresh()
    assert view.state.phase == "starting"
    begin(store)
    view.refresh()
    assert view.state.tasks["worker:0"].phase == "running"


def test_run_without_a_supervisor_is_lost(store: RunStore) -> None:
    view = begin(store, view_of(store.paths).record.started_mono + 3)
    live = api.status_of(view)
    assert (live.run.state, live.tasks[0].state) == ("running", "running")
    store.close()
    lost = api.status_of(view)
    assert (lost.run.state, lost.tasks[0].state) == ("lost", "lost")
    # The time of its end is unknown, but must not be the current time.
    assert (lost.run.uptime_s, lost.tasks[0].uptime_s) == (3.0, 0.0)
    assert api.status_of(view_of(store.paths)).run.uptime_s == lost.run.uptime_s


def test_result_of_a_lost_run_is_125_and_written_once(store: RunStore) -> None:
    view = begin(store)
    lost_runs.close_lost_runs()
    assert lost_runs.sweep_lost_runs() == [] and not store.paths.result.exists(), "the run is live"
    store.close()
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


def test_exit_of_another_version_is_taken_from_the_result(store: RunStore) -> None:
    """The event of the exit cannot be read, but the result can."""
    began = view_of(store.paths).record.started_mono
    begin(store, began)
    with store.paths.events.open("ab") as file:
        file.write(b'{"at":1,"mono":1,"type":"task_exited","task":"worker:0","exit_code":3,"order":0}\n')
    store.append(events.RunEndedEvent(at=1, mono=began + 9, outcome="failed", exit_code=3))
    store.write_result(run_result("failed", task_end(0, "failed", 3), run_id=store.paths.run_id, exit_code=3))
    store.close()
    status = api.status_of(view_of(store.paths))
    assert (status.run.state, status.run.exit_code) == ("failed", 3)
    assert [(task.state, task.exit_code) for task in status.tasks] == [("failed", 3)]


def test_sample_of_an_ended_run_is_empty(store: RunStore) -> None:
    view = begin(store)
    usage = {"worker:0": {"cpu_percent": 1.0, "memory_bytes": 2}}
    store.write_sample(at=1, mono=1, tasks=usage)
    assert view.sample()["worker:0"]["memory_bytes"] == 2
    store.paths.sample.write_text("{half")
    assert view.sample() == {}
    store.write_sample(at=1, mono=1, tasks=usage)
    store.close()
    view.refresh()
    assert view.sample() == {}


def test_progress_of_the_sample_is_newer_than_that_of_the_events(store: RunStore) -> None:
    view = begin(store)
    (task,) = view.state.tasks
    for attempt, number in ((1, 7), (2, None)):
        store.write_sample(at=1, mono=1, tasks={}, progress={task: Progress(step=7)}, attempt=attempt)
        assert view.latest()[0].tasks[task].progress.step == number, "another attempt's does not count"
    assert view.state.tasks[task].progress.step is None


def test_unreadable_record_is_restored_from_the_first_line_of_the_events(store: RunStore) -> None:
    record = view_of(store.paths).record
    for text in ("", "{", "[]", '{"id": "x"}', "\0"):
        store.paths.record.write_text(text)
        view = view_of(store.paths)
        assert view.record == record
        assert "run.json is damaged" in view.remarks()[0]


def test_missing_record_is_restored_from_the_directory_name(tmp_path: Path) -> None:
    store = make_run(started_at=86_400.0)
    store.paths.record.unlink()
    begin(store, 5.0)
    lines = store.paths.events.read_bytes().splitlines(keepends=True)
    store.paths.events.write_bytes(b"".join(lines[1:]))
    view = view_of(store.paths)
    assert (view.record.id, view.record.name, view.record.started_mono) == (store.paths.run_id, "job", 5.0)
    assert view.is_live
    store.close()
    assert not view.is_live
    (tmp_path / "anything").mkdir()
    assert RunView.open(RunPaths(tmp_path / "anything")) is None
