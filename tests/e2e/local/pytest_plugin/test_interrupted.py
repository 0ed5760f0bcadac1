"""Pytest sessions that are interrupted or killed: no cluster outlives them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from inner_session import processes_of, session
from waiting import until

# The start of a session dominates the time of these tests, and takes several times as long on a busy machine.
pytestmark = pytest.mark.timeout(300)
_SESSION_STARTS_S = 200.0

WAITS = """
def test_waits(orch_cluster, orch_preloaded):
    live = {fixture}(command=["sleep", "600"], wait=False)
    orch_cluster(workers=2, command=["sh", "-c", "touch {here}/up-$ORCH_TASK; exec sleep 600"])
"""
DIES = """
import os, signal

def test_dies(orch_cluster):
    orch_cluster(workers=2, command=["sleep", "600"], wait=False).wait_ready()
    os.kill(os.getpid(), signal.SIGKILL)

def test_after_it():
    pass
"""


@pytest.mark.parametrize(
    ("number", "fixture", "code", "shown"),
    [
        (signal.SIGINT, "orch_cluster", pytest.ExitCode.INTERRUPTED, ""),
        # The signal of pytest-timeout.
        pytest.param(
            signal.SIGALRM,
            "orch_cluster",
            pytest.ExitCode.TESTS_FAILED,
            "- orch run ",
            marks=pytest.mark.slow,
        ),
        (signal.SIGKILL, "orch_preloaded", -signal.SIGKILL, ""),
    ],
)
def test_clusters_end_with_a_session_that_gets_a_signal(
    tmp_path: Path, number: signal.Signals, fixture: str, code: int, shown: str
) -> None:
    text = WAITS.format(fixture=fixture, here=tmp_path)
    tasks = [tmp_path / f"up-worker:{index}" for index in (0, 1)]

    def has_started() -> bool:
        return all(task.exists() for task in tasks) or started.poll() is not None

    words = ("-p", "no:xdist", "--timeout", "600", "--timeout-method", "signal")
    with session(tmp_path, text, *words) as started:
        until(has_started, timeout_s=_SESSION_STARTS_S)
        assert started.poll() is None, started.communicate()
        assert processes_of(tmp_path)
        os.kill(started.pid, number)
        out, _ = started.communicate()
        assert (started.returncode, shown in out) == (code, True), out
        assert ("Timeout" in out) == (number == signal.SIGALRM)
        if number != signal.SIGKILL:
            # The fixtures have been closed.
            assert not processes_of(tmp_path)
    until(lambda: not processes_of(tmp_path))


@pytest.mark.slow
def test_clusters_end_when_xdist_worker_is_killed(tmp_path: Path) -> None:
    with session(tmp_path, DIES, "-n", "1") as started:
        out, _ = started.communicate()
    assert "worker 'gw0' crashed" in out
    assert "1 failed, 1 passed" in out
    until(lambda: not processes_of(tmp_path))
