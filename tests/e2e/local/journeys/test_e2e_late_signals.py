"""A signal after the end of the run: the exit code of `orch up` is still the one of the run."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from pathlib import Path

import pytest
from orch_command import ORCH, Orch
from waiting import PATIENCE_S, until, until_gone

_FAILS = ("up", "-n", "2", "--", "sh", "-c", "exit 3")
# For the user's sitecustomize: an object that the interpreter destroys last, and slowly.
_LASTS = """
import os
class Lasting:
    def __del__(self, open=os.open, read=os.read, close=os.close, flags=os.O_RDONLY, path={path!r}):
        fd = open(path, flags)
        read(fd, 1)
        close(fd)
lasting = Lasting()
"""


def test_signal_after_report_does_not_change_exit_code(orch: Orch, tmp_path: Path) -> None:
    """Also while the interpreter exits, which removes the signal handlers first."""
    door = tmp_path / "door"
    os.mkfifo(door)
    (tmp_path / "sitecustomize.py").write_text(_LASTS.format(path=str(door)))
    started = orch.start(*_FAILS, env={"PYTHONPATH": str(tmp_path)})
    with os.fdopen(until(lambda: _opened_where_read(door)), "wb", buffering=0) as opened:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            started.signal(number)
        opened.write(b"\n")
    done = started.finish()
    assert done.code == 3
    assert done.err.splitlines()[-1].startswith("orch: worker:")


def test_caller_in_the_same_process_keeps_its_signal_handlers(orch: Orch) -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    assert orch.within(*_FAILS).code == 3
    assert [signal.getsignal(number) for number in numbers] == before


def test_signal_during_blocked_report_does_not_change_exit_code(orch: Orch) -> None:
    """A second signal skips the report, and the exit code is still the one of the run."""
    reading, writing = os.pipe()
    try:
        _fill(writing)
        process = subprocess.Popen(
            [str(ORCH), *_FAILS],
            cwd=orch.directory,
            env=orch.environ(),
            stderr=writing,
            stdin=subprocess.DEVNULL,
        )
        try:
            # Wait for the supervisor to exit: it would treat these signals as stop orders.
            until_gone(until(orch.supervisor))
            until(lambda: process.poll() is not None or process.send_signal(signal.SIGTERM))
        finally:
            process.kill()
            process.wait(PATIENCE_S)
    finally:
        os.close(reading)
        os.close(writing)
    assert process.returncode == 3


@pytest.mark.parametrize("while_it_runs", [True, False])
@pytest.mark.parametrize("blocked", ["stdout", "stderr"])
def test_two_signals_end_the_client_of_a_blocked_pipe(orch: Orch, blocked: str, while_it_runs: bool) -> None:
    """The first stops the run. The second kills it, or ends the client although its output is not read."""
    script = f"trap '{':' if while_it_runs else 'exit'}' INT TERM; echo here; while :; do sleep 0.1; done"
    reading, writing = os.pipe()
    try:
        _fill(writing)
        process = subprocess.Popen(
            [str(ORCH), "up", "--grace", "1h", "--", "sh", "-c", script],
            cwd=orch.directory,
            env=orch.environ(),
            stdin=subprocess.DEVNULL,
            **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, blocked: writing},
        )
        try:
            until(lambda: orch.run_dirs() and orch.status()["run"]["state"] == "running")
            process.send_signal(signal.SIGINT)
            supervisor = orch.supervisor()
            assert supervisor is not None
            if while_it_runs:
                until(lambda: orch.status()["run"]["state"] == "stopping")
            else:
                until_gone(supervisor)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 130
        finally:
            process.kill()
            process.wait(PATIENCE_S)
    finally:
        os.close(reading)
        os.close(writing)


def _opened_where_read(fifo: Path) -> int | None:
    """Return a descriptor to write to, once there is a reader."""
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def _fill(pipe: int) -> None:
    """Fill the pipe, through a file description of our own: other writers must still block."""
    fd = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)
    try:
        room = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
        assert os.write(fd, b"\n" * room) == room
        with pytest.raises(BlockingIOError):
            os.write(fd, b"\n")
    finally:
        os.close(fd)
