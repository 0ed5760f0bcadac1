"""Pytest sessions that are interrupted or killed: no cluster outlives them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from inner_session import base_of, processes_of
from waiting import until

pytest_plugins = ["pytester"]
# The start of a session dominates the time of these tests, and takes several times as long on a busy machine.
pytestmark = pytest.mark.timeout(300)
_SESSION_STARTS_S = 200.0

WAITS = """
import os
from pathlib import Path

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


@contextmanager
def session(pytester: pytest.Pytester, *words: str) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", base_of(pytester), *words]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=pytester.path
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def wait_for_both(directory: Path, started: subprocess.Popen[str]) -> None:
    until(
        lambda: (
            all((directory / f"up-worker:{index}").exists() for index in (0, 1)) or started.poll() is not None
        ),
        timeout_s=_SESSION_STARTS_S,
    )
    assert started.poll() is None, started.communicate()


@pytest.mark.parametrize(
    ("fixture", "number"), [("orch_cluster", signal.SIGINT), ("orch_preloaded", signal.SIGKILL)]
)
def test_clusters_end_when_session_is_interrupted_or_killed(
    pytester: pytest.Pytester, fixture: str, number: signal.Signals
) -> None:
    pytester.makepyfile(WAITS.format(fixture=fixture, here=pytester.path))
    with session(pytester, "-p", "no:xdist") as started:
        wait_for_both(pytester.path, started)
        assert processes_of(pytester.path)
        os.kill(started.pid, number)
        out, _ = started.communicate()
        if number == signal.SIGINT:
            # The fixtures have been closed.
            assert not processes_of(pytester.path)
            assert started.returncode == pytest.ExitCode.INTERRUPTED, out
    until(lambda: not processes_of(pytester.path))


def test_clusters_end_when_xdist_worker_is_killed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(DIES)
    with session(pytester, "-n", "1") as started:
        out, _ = started.communicate()
    assert "worker 'gw0' crashed" in out
    assert "1 failed, 1 passed" in out
    until(lambda: not processes_of(pytester.path))


def test_clusters_end_when_test_times_out(pytester: pytest.Pytester) -> None:
    """The signal of pytest-timeout is sent as soon as the clusters run."""
    pytester.makepyfile(WAITS.format(fixture="orch_cluster", here=pytester.path))
    with session(pytester, "-p", "no:xdist", "--timeout", "600", "--timeout-method", "signal") as started:
        wait_for_both(pytester.path, started)
        os.kill(started.pid, signal.SIGALRM)
        out, _ = started.communicate()
    assert started.returncode == pytest.ExitCode.TESTS_FAILED, out
    assert "Timeout" in out and "- orch run " in out
    assert not processes_of(pytester.path)
