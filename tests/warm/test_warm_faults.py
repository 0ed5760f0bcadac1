"""Faults during a run that uses kept processes: it ends as a cold one does, and the next run works."""

from __future__ import annotations

import signal
from contextlib import closing

import psutil
import pytest
from waiting import until, until_gone
from warm_command import WarmOrch

WAITS = ("--", "sh", "-c", "echo began; sleep 600 & wait")
ECHO = ("--", "sh", "-c", "echo said")


@pytest.mark.parametrize(
    ("part", "code", "outcome"),
    [
        ("supervisor", None, "lost"),
        ("agent", 125, "failed"),
        ("client", None, "stopped"),
        ("task", 137, "failed"),
    ],
)
def test_killed_part_of_a_run(warm: WarmOrch, part: str, code: int | None, outcome: str) -> None:
    warm("up", "--warm", *ECHO)
    supervisor = warm.until_waiting()
    (agent,) = supervisor.children()
    with closing(warm.start("up", "--warm", *WAITS)) as started:
        run = until(lambda: next(iter(warm.orch.run_dirs()[1:]), None))
        task = psutil.Process(warm.orch.pids()[0])
        below = [supervisor, agent, *task.children(recursive=True), task]
        killed = {
            "supervisor": supervisor.pid,
            "agent": agent.pid,
            "client": started.process.pid,
            "task": task.pid,
        }
        psutil.Process(killed[part]).send_signal(signal.SIGKILL)
        done = started.finish()
    if code is not None:
        assert done.code == code, done.err
    until(lambda: warm.orch.status(run.name)["run"]["state"] not in ("running", "stopping"))
    assert warm.orch.status(run.name)["run"]["state"] == outcome
    until_gone(*(process.pid for process in below[2:]))
    if part in ("supervisor", "agent"):
        until_gone(supervisor.pid, agent.pid)
    again = warm("up", "--warm", *ECHO)
    assert (again.code, again.lines) == (0, ["worker:0 | said"])


def test_removed_run_directory_during_a_run(warm: WarmOrch) -> None:
    warm("up", "--warm", *ECHO)
    warm.until_waiting()
    with closing(warm.start("up", *WAITS)) as started:
        run = until(lambda: next(iter(warm.orch.run_dirs()[1:]), None))
        warm.orch.pids()
        run.rename(run.parents[2] / "moved")
        assert started.finish().code == 125
    assert warm("up", "--warm", *ECHO).code == 0
