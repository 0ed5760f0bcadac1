"""Concurrent commands with the same name or run: one succeeds, and the others report that. Clocks that were set."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from making import event, exited
from orch_command import Orch
from pages import write_run
from run_records import make_run, one_task
from waiting import until

from orchestrator.client import api
from orchestrator.core.state import events
from orchestrator.store.runs import catalog
from orchestrator.store.runs.paths import RunPaths, runs_dir
from orchestrator.store.runs.writer import RunStore

CLOSES = """
import sys, time
from pathlib import Path
from orchestrator.store.runs import catalog, lost_runs
Path(sys.argv[1], "here-" + sys.argv[2]).touch()
while not Path(sys.argv[1], "go").exists(): time.sleep(0.0005)
lost_runs.close_lost_runs()
"""
CLOSERS = 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_of_twenty_concurrent_runs_gets_the_name(orch: Orch) -> None:
    words = ("up", "-d", "--name", "wanted", "--", "sleep", "600")
    started = [orch.start(*words) for _ in range(20)]
    codes = sorted(command.finish(timeout_s=500).code for command in started)
    assert codes == [0] + [4] * 19
    assert len(orch.run_dirs()) == 1
    assert orch("down", "wanted").code == 0


def test_lost_run_is_closed_by_one_of_several_processes(tmp_path: Path) -> None:
    """The run is not shown as live in the meantime."""
    lost = write_run("losing", is_lost=True)
    for number in range(8):
        copy = shutil.copytree(lost, runs_dir() / f"losing-20260101T000000Z-000{number}")
        for file in ("run.json", "events.jsonl"):
            (copy / file).write_text((copy / file).read_text().replace(lost.name, copy.name))
    argv = [sys.executable, "-c", CLOSES, str(tmp_path)]
    closers = [subprocess.Popen([*argv, str(number)]) for number in range(CLOSERS)]
    until(lambda: all((tmp_path / f"here-{number}").exists() for number in range(CLOSERS)))
    (tmp_path / "go").touch()
    looks = 0
    while any(closer.poll() is None for closer in closers) or not looks:
        assert not [run.record.id for run in catalog.all_runs() if run.is_live]
        looks += 1
    assert [closer.returncode for closer in closers] == [0] * CLOSERS
    for run in runs_dir().iterdir():
        result = json.loads(RunPaths(run).result.read_text())
        assert (result["run_id"], result["outcome"]) == (run.name, "lost")
        assert not list(run.glob(".result*")) and not RunPaths(run).scratch.exists()


# -- ages and durations use the monotonic clock, which cannot be set; the order of runs uses the wall clock and the id


def with_clock(store: RunStore, **fields: float) -> RunStore:
    """Change the recorded times of the run's start: `started_at` (wall clock), `started_mono`."""
    document: dict[str, Any] = json.loads(store.paths.record.read_text())
    store.paths.record.write_text(json.dumps({**document, **fields}))
    return store


def test_runs_are_ordered_by_the_wall_clock_and_by_id() -> None:
    """The monotonic clock of a time namespace starts anywhere."""
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(make_run())) for _ in range(4)]
        second = with_clock(stores[0], started_at=2e9, started_mono=1.0).paths.run_id
        first = with_clock(stores[1], started_at=1e9, started_mono=1e9).paths.run_id
        same = sorted(with_clock(store, started_at=1.5e9).paths.run_id for store in stores[2:])
        assert [run.record.id for run in catalog.all_runs()] == [first, *same, second]
        assert api.find("job").id == second


def test_ages_and_durations_are_independent_of_the_wall_clock(orch: Orch) -> None:
    for clock in (1.0, 4e9):
        with closing(with_clock(make_run(), started_at=clock)) as store:
            began = time.monotonic()
            ended = event(events.RunEndedEvent, began + 3, outcome="succeeded", exit_code=0)
            for number, each in enumerate((*one_task(began), exited(0, mono=began + 2), ended)):
                store.append(each.model_copy(update={"at": clock - 1e6 * number}))
            status = orch("status", store.paths.run_id, "--json").document
            rows = {row["id"]: row for row in orch("ls", "--all", "--json").document["runs"]}
        row = rows[store.paths.run_id]
        assert status["tasks"][0]["uptime_s"] == 2.0
        assert 3.0 <= status["run"]["uptime_s"] < 60.0
        assert 3.0 <= row["took_s"] < 60.0 and row["age_s"] < 60.0
