"""Processes of orch are killed while tasks are preloaded and forked: the run continues or ends, and leaves nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from orch_command import Orch, Started
from waiting import until, until_gone

# Its import lasts until a file exists.
SLOW = """
import os, select
here = os.path.dirname(__file__)
open(os.path.join(here, "importing"), "w").close()
while not os.path.exists(os.path.join(here, "go")):
    select.select([], [], [], 0.01)
"""
TASK = """
import os, select, slow
print("runs", flush=True)
while not os.path.exists("end"):
    select.select([], [], [], 0.01)
print("ends", flush=True)
"""


class Preloading:
    """A run whose preloader imports a module until the test lets it finish."""

    def __init__(self, orch: Orch, workers: int = 2) -> None:
        self._orch = orch
        self._lib = orch.directory.parent / "lib"
        self._lib.mkdir()
        (self._lib / "slow.py").write_text(SLOW)
        self.workers = workers
        words = ("-v", "up", "-n", str(workers), "--grace", "30s", "--preload", "slow", "--")
        script = orch.script("task.py", TASK)
        self.started: Started = orch.start(*words, script, env={"PYTHONPATH": str(self._lib)})
        self.preloader = int(until(orch.preloader))
        until((self._lib / "importing").exists)

    def go(self) -> None:
        """Let the import finish."""
        (self._lib / "go").touch()

    def until_tasks_run(self) -> None:
        self.started.until_out("runs", self.workers)

    def end(self) -> None:
        """Let the tasks finish, and check that all of them did."""
        (self._orch.directory / "end").touch()
        done = self.started.finish()
        assert done.code == 0, done.out + done.err
        assert done.out.count("ends") == self.workers

    def nothing_is_left(self, *pids: int) -> None:
        until_gone(self.preloader, *pids)
        run = self._orch.run_dir()
        assert not (run / "scratch").exists()
        for entry in Path("/proc").iterdir():
            try:
                assert run.name.encode() not in (entry / "environ").read_bytes(), entry
            except OSError:
                continue


def test_preloader_killed_during_its_imports(cold_orch: Orch) -> None:
    preloading = Preloading(cold_orch)
    os.kill(preloading.preloader, signal.SIGKILL)
    preloading.go()
    preloading.until_tasks_run()
    assert cold_orch.methods() == {"spawn"}
    preloading.end()
    assert "orch: not preloaded: the preloader " in preloading.started.err
    preloading.nothing_is_left()


def test_preloader_killed_after_forking(cold_orch: Orch) -> None:
    preloading = Preloading(cold_orch)
    preloading.go()
    preloading.until_tasks_run()
    assert cold_orch.methods() == {"fork"}
    os.kill(preloading.preloader, signal.SIGKILL)
    until_gone(preloading.preloader)
    preloading.end()
    preloading.nothing_is_left()


def test_preloader_killed_during_forking(cold_orch: Orch) -> None:
    """Some tasks are forked and some are spawned. Each runs once."""
    preloading = Preloading(cold_orch, workers=24)
    preloading.go()
    until(lambda: cold_orch.events("task_started"))
    os.kill(preloading.preloader, signal.SIGKILL)
    preloading.until_tasks_run()
    assert len({event["pid"] for event in cold_orch.events("task_started")}) == 24
    preloading.end()
    assert preloading.started.out.count("runs") == 24
    preloading.nothing_is_left()


def test_hanging_preloader_can_be_stopped(cold_orch: Orch) -> None:
    preloading = Preloading(cold_orch)
    os.kill(preloading.preloader, signal.SIGSTOP)
    assert cold_orch("down").code == 0
    assert preloading.started.finish().code == 143
    assert not cold_orch.events("task_started")
    preloading.nothing_is_left()


def test_ctrl_c_during_imports(cold_orch: Orch) -> None:
    preloading = Preloading(cold_orch)
    preloading.started.signal(signal.SIGINT)
    assert preloading.started.finish().code == 130
    assert not cold_orch.events("task_started")
    preloading.nothing_is_left()


@pytest.mark.parametrize("phase", ["importing", pytest.param("running", marks=pytest.mark.slow)])
@pytest.mark.parametrize("who", ["client", "supervisor", "agent"])
def test_parents_of_the_preloader_killed(cold_orch: Orch, who: str, phase: str) -> None:
    preloading = Preloading(cold_orch)
    if phase == "running":
        preloading.go()
        preloading.until_tasks_run()
    tasks = [event["pid"] for event in cold_orch.events("task_started")]
    client, supervisor, agent = preloading.started.process.pid, cold_orch.supervisor(), cold_orch.agent()
    assert supervisor is not None and agent is not None
    os.kill({"client": client, "supervisor": supervisor, "agent": agent}[who], signal.SIGKILL)
    code = preloading.started.finish().code
    if who == "supervisor":
        # The next command removes its directories.
        until_gone(*tasks, agent, preloading.preloader)
        assert cold_orch("down").code == 0
    preloading.nothing_is_left(*tasks, supervisor, agent)
    state = {"client": "stopped", "supervisor": "lost", "agent": "failed"}[who]
    assert cold_orch.status()["run"]["state"] == state
    assert code == {"client": -signal.SIGKILL, "supervisor": 125, "agent": 125}[who]
