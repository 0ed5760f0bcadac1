"""Any content of a run's directory is read as far as it is valid, without a failure."""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fuzzing import any_bytes, as_json, damaged, fuzzed, torn
from hypothesis import example, given
from hypothesis import strategies as st
from making import (
    OWN,
    attempt_planned,
    cause,
    event,
    exited,
    first_failure,
    progressed,
    ready,
    run_result,
    started,
    task_end,
)

from orchestrator.client.api import Run
from orchestrator.client.run_rows import run_row
from orchestrator.client.view.messages import event_message
from orchestrator.client.view.report import end_lines
from orchestrator.client.view.tables import run_lines, status_lines
from orchestrator.core.diagnosis.symptoms import Uncaught
from orchestrator.core.errors import NewerFormat
from orchestrator.core.state import events
from orchestrator.core.state.events import Event, event_line, parse_event
from orchestrator.core.state.state import RunState
from orchestrator.core.text.clean import safe
from orchestrator.store.directory import Directory
from orchestrator.store.runs.event_file import EventTail
from orchestrator.store.runs.paths import RunPaths
from orchestrator.store.runs.reader import RunView
from orchestrator.store.runs.record import RunRecord
from orchestrator.store.runs.task_files import read_exception

CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
EVENTS: list[Event] = [
    attempt_planned(2, env={"A": "1"}),
    started(),
    ready(),
    progressed(epoch=1, epochs=2, step=3, steps=4, loss=0.5, metrics={"a": 1}),
    event(events.Noticed, text="worker:0: the loss is nan", nan_in="worker:0"),
    event(events.SignalRequested, task=0, signal=9, by="user"),
    exited(0, 3, symptom=OWN, peers={"worker:1": "T"}, over_limit=(5, 4)),
    event(events.DiskFull, task=0, reason="/x: No space left on device"),
    event(events.StacksTaken, why="user", stacks={}),
    event(events.TaskRestartPlanned, task=0, delay_s=1, text="again"),
    event(events.TeardownBegan, reason=events.TeardownReason.FAILURE, grace_s=0.5),
    event(events.TeardownEnded, swept=1),
    event(events.RunEndedEvent, outcome="failed", exit_code=3),
]
RECORD = RunRecord(
    id="job-20260101T000000Z-0000",
    name="job",
    directory="/here",
    started_at=time.time(),
    started_mono=1.0,
    boot_id="x",
    supervisor_pid=1,
    supervisor_start_ticks=1,
    checkpoint_dir="/c",
    versions={},
    spec={},
)
FAILED = task_end(0, "failed", 3, end="failed")
FIRST = first_failure(0, 3, exception="E", advice="a", lines=("l",))
RESULT = run_result("failed", FAILED, run_id=RECORD.id, exit_code=3, cause=cause(0), first_failure=FIRST)
SAMPLE = {
    "at": 1.0,
    "mono": 1.0,
    "tasks": {"worker:0": {"cpu_percent": 1.0, "memory_bytes": 5}},
    "attempt": 1,
    "progress": {"worker:0": {"phase": "training", "step": 3, "loss": 0.5}},
}
UNCAUGHT = {"type": "ValueError", "message": "m", "text": "Traceback ...\nValueError: m\n", "at": 1.0}
# The files of a run. Those that are read once are JSON documents.
RECORD_JSON, RESULT_JSON = (json.loads(each.model_dump_json()) for each in (RECORD, RESULT))
WHOLE = b"".join(map(event_line, EVENTS))
event_documents = st.sampled_from(EVENTS).map(lambda event: json.loads(event_line(event)))
damaged_events = event_documents.flatmap(damaged).map(as_json)
torn_events = st.sampled_from(EVENTS).map(event_line).flatmap(torn)
any_event_line = damaged_events | torn_events | any_bytes | st.sampled_from(EVENTS).map(event_line)


@given(any_event_line)
@example(b'{"type": "teardown_ended", "at": "NaN", "mono": 1.0, "swept": 0}')
@fuzzed(80)
def test_line_is_an_event_or_a_value_error(line: bytes) -> None:
    try:
        event = parse_event(line)
    except ValueError:
        return
    assert parse_event(event_line(event)).model_dump_json() == event.model_dump_json()


@given(st.lists(any_event_line.map(lambda line: line.replace(b"\n", b" ") + b"\n"), max_size=8), st.data())
@fuzzed(60)
def test_events_around_the_damage_are_read(place: Path, lines: list[bytes], data: st.DataObject) -> None:
    """Complete lines before and after a damaged one count, however the file has grown."""
    good = event_line(EVENTS[1])
    whole = [good, *lines, good]
    content = b"".join(whole)
    cut = data.draw(st.integers(0, len(content)))
    path = place / "events.jsonl"
    path.write_bytes(content[:cut])
    tail = EventTail(path)
    found = tail.read()
    with path.open("ab") as file:
        file.write(content[cut:])
    found += tail.read()
    assert found[0] == found[-1] == EVENTS[1]
    assert tail.read() == []


def a_run(
    place: Path,
    record: bytes = as_json(RECORD_JSON),
    happened: bytes = WHOLE,
    sample: bytes = as_json(SAMPLE),
    result: bytes = b"",
) -> RunView | None:
    paths = RunPaths(place / "run")
    paths.root.mkdir(exist_ok=True)
    paths.record.write_bytes(record)
    paths.events.write_bytes(happened)
    paths.sample.write_bytes(sample)
    paths.result.write_bytes(result)
    return RunView.open(paths)


def is_shown(view: RunView) -> list[str]:
    """Return the lines. As `orch status`, `orch ls` and the report at a run's end show it: safe lines, and JSON."""
    status = Run(view).status()
    json.dumps(status.model_dump(mode="json"))
    happened = EventTail(view.paths.events).read()
    messages = (event_message(each, status.run.most_attempts, verbose=True) for each in happened)
    lines = [safe(message) for message in messages if message is not None]
    lines += status_lines(status, 100, colour=False)
    lines += run_lines([run_row(view)], 100, colour=False)
    result = view.result()
    if result is not None:
        lines += end_lines(result, 100, colour=False)
        result.model_dump_json()
    for line in lines:
        assert CONTROL.search(line) is None, line
        line.encode()
    return lines


@given(st.lists(any_event_line, max_size=6), st.integers(0, len(EVENTS)))
@fuzzed(60)
def test_any_events_make_a_state_that_can_be_shown(place: Path, lines: list[bytes], kept: int) -> None:
    view = a_run(place, happened=b"".join(map(event_line, EVENTS[:kept])) + b"\n".join(lines) + b"\n")
    assert view is not None
    is_shown(view)
    assert view.state.phase.is_end


@given(
    damaged(RECORD_JSON).map(as_json) | any_bytes,
    st.just(b"") | damaged(RESULT_JSON).map(as_json) | any_bytes,
)
@fuzzed(120)
def test_any_record_and_result(place: Path, record: bytes, result: bytes) -> None:
    for view in (a_run(place, record), a_run(place, result=result)):
        with contextlib.suppress(NewerFormat):
            if view is not None:
                is_shown(view)
    assert view is not None


def with_each_number(document: Any, number: object) -> Iterator[Any]:
    """Yield copies of the document, each with another one of its numbers replaced."""
    if isinstance(document, dict | list):
        for key, value in document.items() if isinstance(document, dict) else enumerate(document):
            for changed in with_each_number(value, number):
                copy = document.copy()
                copy[key] = changed
                yield copy
    elif isinstance(document, int | float) and not isinstance(document, bool):
        yield number


@pytest.mark.parametrize("number", [10**400, -(10**4000), 1e300, math.inf], ids=lambda x: f"{x!r:.5}")
def test_numbers_too_large_to_use_are_not_shown(place: Path, number: float) -> None:
    """Some cannot be converted, others would fill the screen."""
    spec = {"on_failure": "restart", "max_restarts": 1}
    records = with_each_number({**RECORD_JSON, "spec": spec}, number)
    draws: list[dict[str, bytes]] = [{"record": as_json(each)} for each in records]
    draws += [{"result": as_json(each)} for each in with_each_number(RESULT_JSON, number)]
    draws += [
        {"happened": b"".join(map(event_line, EVENTS[:at])) + as_json(changed) + b"\n"}
        for at, each in enumerate(EVENTS)
        for changed in with_each_number(json.loads(event_line(each)), number)
    ]
    for files in draws:
        with contextlib.suppress(NewerFormat):
            view = a_run(place, **files)
            assert view is None or not re.search(r"\d{50}", "\n".join(is_shown(view)))


@given(damaged(SAMPLE).map(as_json) | any_bytes)
@example(as_json([1]))
@example(as_json({"tasks": {"worker:0": 3}}))
@example(as_json({"attempt": 1, "progress": {"worker:0": {"phase": "\ud800", "step": "x"}}}))
@example(as_json({"attempt": 1, "progress": {"worker:0": {"phase": "\ud800", "metrics": {"\ud800": 1}}}}))
@example(as_json({"attempt": 1, "progress": {"worker:0": {"epoch": 10**30}}}))
@example(as_json({"tasks": {"worker:0": {"memory_bytes": math.nan, "cpu_percent": "x"}}}))
@fuzzed(60)
def test_any_sample(place: Path, sample: bytes) -> None:
    view = a_run(place, happened=b"".join(map(event_line, EVENTS[:4])), sample=sample)
    assert view is not None
    view.refresh()
    view.state = replace(view.state, phase=RunState().phase)  # as if it were live: only then is a sample read
    json.dumps(view.sample())
    is_shown(view)
    for usage in view.sample().values():
        assert {type(value) for value in usage.values()} <= {int, float}


@given(damaged(UNCAUGHT).map(as_json) | st.just(as_json(UNCAUGHT)).flatmap(torn) | any_bytes)
@fuzzed(80)
def test_any_exception_file(place: Path, data: bytes) -> None:
    path = place / "worker-0.json"
    path.write_bytes(data)
    with Directory.at(place) as run:
        found = read_exception(run, path)
    if found is not None:
        assert isinstance(found, Uncaught)
        found.model_dump_json().encode()
        (place / "worker-0.txt").write_text(found.text)
