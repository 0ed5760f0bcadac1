"""Concurrent commands with the same name or run: one succeeds, and the others report that."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from orch_command import Orch
from pages import write_run
from waiting import until

from orchestrator.store.runs import catalog
from orchestrator.store.runs.paths import RunPaths, runs_dir

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


@pytest.mark.slow
def test_down_of_a_run_that_ends_at_the_same_time(orch: Orch) -> None:
    """`down` succeeds whichever is first, and the result is one of the two, complete."""
    for after in ("0", "0.05", "0.1", "0.2"):
        assert orch("up", "-d", "--name", "short", "--", "sleep", after).code == 0
        down = orch.start("down", "short")
        waited = orch.start("wait", "short")
        assert down.finish().code == 0
        result = orch.result(orch.run_dirs()[-1])
        assert (result["outcome"], result["exit_code"]) in (("succeeded", 0), ("stopped", 143))
        assert waited.finish().code == result["exit_code"]


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
