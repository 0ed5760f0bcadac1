"""With any bytes in a run's files reading does not fail, and a dead run is not shown as live."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_runs import Made, Place
from run_damage import file_of

from orchestrator.client import api
from orchestrator.client.view.tables import status_lines
from orchestrator.core.errors import NewerFormat, RunEnded
from orchestrator.store.logs.query import LogQuery, query_lines
from orchestrator.store.runs import catalog
from orchestrator.store.runs.event_file import EventTail
from orchestrator.store.runs.paths import RunPaths
from orchestrator.store.runs.reader import RunView

FILES = ("run.json", "events.jsonl", "result.json", "sample.json", "samples.jsonl", "index")
Change = Callable[[bytes], bytes]


def _overwrite(at: float, with_: bytes) -> Change:
    return lambda data: data[: int(at * len(data))] + with_ + data[int(at * len(data)) + len(with_) :]


def _insert(at: float, what: bytes) -> Change:
    return lambda data: data[: int(at * len(data))] + what + data[int(at * len(data)) :]


def _cut(begin: float, end: float) -> Change:
    return lambda data: data[: int(begin * len(data))] + data[int(max(begin, end) * len(data)) :]


places = st.floats(0, 1, allow_nan=False)
garbage = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [b"\0" * 5000, b"\n", b"null", b'"', b"{", b"1e999", b"-1", b"9" * 500, b'"\\ud800"', b"NaN"]
    ),
)
changes = st.lists(
    st.one_of(
        st.builds(_overwrite, places, garbage),
        st.builds(_insert, places, garbage),
        st.builds(_cut, places, places),
    ),
    min_size=1,
    max_size=4,
)
damages = st.dictionaries(st.sampled_from(FILES), changes, min_size=1, max_size=3)


@pytest.fixture
def originals(made: Made, place: Place) -> list[tuple[RunPaths, dict[str, bytes]]]:
    found = []
    for run in (made.failed, made.lost):
        paths = place(run)
        paths.sample.write_text('{"tasks": {"worker:0": {"cpu_percent": 1.0, "memory_bytes": 4096}}}')
        paths.samples.write_text(
            '{"time":1.0,"task":"worker:0","attempt":1,"step":5,"metrics":{"mae":0.5}}\n' * 5
        )
        whole = {which: file_of(paths, which) for which in FILES}
        found.append((paths, {which: path.read_bytes() for which, path in whole.items() if path.exists()}))
    return found


def _inspect(paths: RunPaths) -> None:
    """Do all that the reading commands do with a run."""
    view = RunView.open(paths)
    if view is None:
        return
    assert not view.is_live
    assert not view.can_be_swept or view.is_original
    status = api.status_of(view)
    assert status.run.state not in ("starting", "running", "stopping")
    status.model_dump_json().encode()
    "\n".join(status_lines(status, 80, colour=True)).encode()
    "\n".join(view.remarks()).encode()
    columns = view.history()
    assert {len(values) for values in columns.values()} == {len(columns["time"])}
    json.dumps(columns, allow_nan=False)
    with suppress(RunEnded):
        api.Run(view).wait(timeout_s=0)
    for lines in query_lines(paths.logs, LogQuery(), lambda: True):
        "".join(line.text for line in lines).encode()


@settings(
    max_examples=int(os.environ.get("ORCH_TEST_EXAMPLES", "40")), suppress_health_check=list(HealthCheck)
)
@given(damages=damages)
def test_reading_never_fails(
    damages: dict[str, list[Change]], originals: list[tuple[RunPaths, dict[str, bytes]]]
) -> None:
    for paths, whole in originals:
        for which, data in whole.items():
            for change in damages.get(which, ()):
                data = change(data)
            file_of(paths, which).write_bytes(data)
        with suppress(NewerFormat):
            _inspect(paths)
    catalog.survey()


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(change=changes)
def test_complete_lines_after_damage_are_read(
    change: list[Change], tmp_path: Path, originals: list[tuple[RunPaths, dict[str, bytes]]]
) -> None:
    """All complete lines that follow any damage are read."""
    _, whole = originals[0]
    damaged = whole["events.jsonl"]
    for each in change:
        damaged = each(damaged)
    path = tmp_path / "events.jsonl"
    path.write_bytes(whole["events.jsonl"])
    wanted = EventTail(path).read()
    path.write_bytes(damaged + b"\n" + whole["events.jsonl"])
    assert EventTail(path).read()[-len(wanted) :] == wanted
