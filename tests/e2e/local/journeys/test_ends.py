"""How `orch up` in the foreground ends when signals, other commands and its own output interfere.

Which end each fault leads to is in the matrix (tests/e2e/local/faults)."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from orch_command import ORCH, Orch
from waiting import PATIENCE_S, until, until_gone

_FAILS = ("up", "-n", "2", "--", "sh", "-c", "exit 3")
_SLEEPER = ("sh", "-c", "echo here; exec sleep 600")
_SAVES_SLOWLY = """
import pathlib, signal, sys, time
def save(*_):
    print("saving", flush=True)
    for step in range(20):
        time.sleep(0.05)
        print("still saving", flush=True)
    pathlib.Path("saved").write_text("yes")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("here", flush=True)
time.sleep(600)
"""
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


def test_run_under_nohup_ignores_sighup(orch: Orch) -> None:
    command = "echo here; until [ -e go ]; do sleep 0.1; done; echo on; until [ -e end ]; do sleep 0.1; done"
    started = orch.start("up", "--", "sh", "-c", command, before=("nohup",))
    started.until_out("| here\n")
    started.signal(signal.SIGHUP)
    (orch.directory / "go").touch()
    started.until_out("| on\n")  # shown by a client that has received its signal
    (orch.directory / "end").touch()
    assert started.finish().code == 0


def test_verbs_of_a_lost_run(cold_orch: Orch) -> None:
    orch = cold_orch
    started = orch.start("up", "-n", "2", "--", *_SLEEPER)
    started.until_out("| here\n", 2)
    pids = orch.pids()
    supervisor = orch.supervisor()
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)
    done = started.finish()
    until_gone(*pids)
    assert done.code == 125 and "lost" in done.err and "Traceback" not in done.err
    assert orch.status()["run"]["state"] == "lost"
    assert orch("wait").code == 125
    assert orch("logs", "--no-prefix").out == "here\nhere\n"
    assert orch("down").code == 0
    assert orch.result()["outcome"] == "lost"
    assert orch("up", "-q", "--", "true").code == 0


def test_client_leaves_suspended_supervisor(cold_orch: Orch) -> None:
    """The second signal makes the client exit, and name the supervisor that SIGSTOP has stopped."""
    client = cold_orch.start("up", "--", *_SLEEPER)
    client.until_out("| here\n")
    pid = cold_orch.supervisor()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        client.signal(signal.SIGINT)
        time.sleep(1.0)  # two signals at once could be one
        assert not client.ended
        client.signal(signal.SIGINT)
        until(lambda: client.ended)
    finally:
        os.kill(pid, signal.SIGCONT)
    done = client.finish()
    assert done.code == 125 and f"kill -CONT {pid}" in done.err
    assert cold_orch.result()["outcome"] == "stopped"


def test_closed_output_during_stop_does_not_kill(orch: Orch) -> None:
    """`orch up | tee log`: Ctrl-C also ends tee, and the task still gets its grace period."""
    script = orch.script("saves.py", _SAVES_SLOWLY)
    reader, writer = os.pipe()
    words = ("--grace", "60s", "--", sys.executable, "-u", script)
    with _client(orch, *words, stdout=writer) as client:
        os.close(writer)
        with os.fdopen(reader, "rb") as out:
            assert any(b"here" in line for line in iter(out.readline, b""))
            client.send_signal(signal.SIGINT)
            assert any(b"saving" in line for line in iter(out.readline, b""))
        assert client.wait(PATIENCE_S) == 130
    assert (orch.directory / "saved").exists()


def test_orch_on_pythonpath_is_isolated_from_user_modules(orch: Orch) -> None:
    """The processes of orch do not import the user's modules, but find orch where the client found it."""
    places = [str(Path(str(find_spec(name).origin)).parents[1]) for name in ("orchestrator", "pydantic")]
    (orch.directory / "json.py").write_text("raise SystemExit('the wrong json')")
    base = str(getattr(sys, "_base_executable", sys.executable))
    done = subprocess.run(
        [base, "-P", "-m", "orchestrator", "up", "-q", "--", "echo", "hello"],
        cwd=orch.directory,
        env=orch.environ({"PYTHONPATH": os.pathsep.join(places)}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "worker:0 | hello\n"), done.stderr


def test_processes_left_by_successful_task_are_killed_and_reported(orch: Orch) -> None:
    done = orch("up", "--", "sh", "-c", "trap '' TERM; setsid sleep 600 & echo done")
    assert done.code == 0 and done.lines == ["worker:0 | done"]
    assert "orch: killed 1 process that the tasks had left running" in done.err


# -- down, names and --replace


def test_runs_of_one_directory(orch: Orch) -> None:
    """Which of them `down` stops, and what it says of the others; two live runs may share the default name."""
    wait = ("up", "-q", "--wait", "ready")
    for _ in range(2):
        assert orch(*wait, "--", *_SLEEPER).code == 0
    assert orch(*wait, "--name", "other", "--", *_SLEEPER).code == 0
    elsewhere = orch.directory / "elsewhere"
    elsewhere.mkdir()
    assert orch(*wait, "--name", "there", "--", *_SLEEPER, cwd=elsewhere).code == 0
    first, second, other, there = (run.name for run in orch.run_dirs())
    down = orch("down")
    assert (down.code, down.err.splitlines()) == (
        0,
        [
            f"orch: stopping {other}, the newest of 3 live runs of this directory",
            f"orch: {other}: stopped worker:0; no process is left",
            f"orch: still live in this directory: {second}, {first}; `orch down --all` stops all",
        ],
    )
    again = orch("down", "other", "--json")
    assert (again.document["ended"], again.document["still_live"]) == ([], [second, first])
    refused = orch("down", "--all", first)
    assert refused.code == 2 and f'leave out --all or "{first}"' in refused.err
    stopped = orch("down", "--all", "--json").document
    assert [(run["run"], run["ended"]) for run in stopped["runs"]] == [
        (run, ["worker:0"]) for run in (second, first)
    ]
    states = {run: orch.status(run)["run"]["state"] for run in (first, second, there)}
    assert states == {first: "stopped", second: "stopped", there: "running"}
    none = orch("down", "--all")
    assert (none.code, none.err) == (0, "orch: no run here to stop\n")
    assert orch("--json", "down", "--force", "there").document == {
        "schema_version": 1,
        "run": there,
        "ended": ["worker:0"],
        "swept": 0,
        "left": [],
        "lost_hosts": [],
        "still_live": [],
    }


def test_up_names_another_live_run_of_the_directory(orch: Orch) -> None:
    assert orch("up", "--wait", "ready", "--", *_SLEEPER).err == ""
    first = orch.run_dir().name
    second = orch("up", "--", "true")
    assert second.code == 0
    assert second.err.splitlines()[:2] == [
        f"orch: another run is live in this directory: {first}",
        f"orch: `orch status {first}` shows it, `orch up --replace` stops it first",
    ]
    assert "live" not in orch("up", "-q", "--", "true").err
    replacing = orch("up", "-d", "--replace", "--name", "other", "--", *_SLEEPER)
    assert (
        "`orch up --replace`" not in replacing.err and f"`orch down {orch.directory.name}`" in replacing.err
    )
    assert "2 other runs are live in this directory: `orch ls`" in orch("up", "--", "true").err
    assert f"orch: --replace: {first}: stopped worker:0" in orch("up", "--replace", "--", "true").err
    assert orch("down", "--all").code == 0


def test_name_of_live_run_is_taken_or_replaced(orch: Orch) -> None:
    """Also the default name, which two live runs may have: after one has ended, it is the other's."""
    first = orch.start("up", "--name", "mine", "--", *_SLEEPER)
    first.until_out("| here\n")
    taken = orch("up", "--name", "mine", "--", "true")
    assert taken.code == 4 and "a live run is named 'mine'" in taken.err and "--replace" in taken.err
    assert len(orch.run_dirs()) == 1
    assert orch("up", "--name", "mine", "--replace", "--", "true").code == 0
    assert first.finish().code == 143
    assert orch("up", "--name", "mine", "--", "true").code == 0
    for _ in range(2):
        assert orch("up", "-q", "--wait", "ready", "--", *_SLEEPER).code == 0
    assert orch("down").code == 0
    assert orch("up", "--name", orch.directory.name, "--", "true").code == 4


# -- signals that come late


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


def test_signal_during_blocked_report_does_not_change_exit_code(cold_orch: Orch) -> None:
    """A second signal skips the report, and the exit code is still the one of the run."""
    with _full_pipe() as full, _client(cold_orch, *_FAILS[1:], stderr=full) as client:
        # Wait for the supervisor to exit: it would treat these signals as stop orders.
        until_gone(until(cold_orch.supervisor))
        until(lambda: client.poll() is not None or client.send_signal(signal.SIGTERM))
    assert client.returncode == 3


@pytest.mark.parametrize(("blocked", "while_it_runs"), [("stdout", True), ("stderr", False)])
def test_two_signals_end_the_client_of_a_blocked_pipe(
    cold_orch: Orch, blocked: str, while_it_runs: bool
) -> None:
    """The first stops the run. The second kills it, or ends the client although its output is not read."""
    script = f"trap '{':' if while_it_runs else 'exit'}' INT TERM; echo here; while :; do sleep 0.1; done"
    words = ("--grace", "1h", "--", "sh", "-c", script)
    with _full_pipe() as full, _client(cold_orch, *words, **{blocked: full}) as client:
        until(lambda: cold_orch.run_dirs() and cold_orch.status()["run"]["state"] == "running")
        client.send_signal(signal.SIGINT)
        supervisor = cold_orch.supervisor()
        assert supervisor is not None
        if while_it_runs:
            until(lambda: cold_orch.status()["run"]["state"] == "stopping")
        else:
            until_gone(supervisor)
        client.send_signal(signal.SIGINT)
        assert client.wait(PATIENCE_S) == 130


@contextmanager
def _client(orch: Orch, *words: str, **streams: int) -> Iterator[subprocess.Popen[bytes]]:
    """`orch up WORDS` whose output goes to these descriptors."""
    nowhere = subprocess.DEVNULL
    client = subprocess.Popen(
        [str(ORCH), "up", *words],
        cwd=orch.directory,
        env=orch.environ(),
        stdin=nowhere,
        **{"stdout": nowhere, "stderr": nowhere, **streams},
    )
    try:
        yield client
    finally:
        client.kill()
        client.wait(PATIENCE_S)


@contextmanager
def _full_pipe() -> Iterator[int]:
    """The descriptor of a pipe to which nothing more can be written."""
    reading, writing = os.pipe()
    try:
        # Through a file description of our own: other writers must still block.
        fd = os.open(f"/proc/self/fd/{writing}", os.O_WRONLY | os.O_NONBLOCK)
        try:
            room = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
            assert os.write(fd, b"\n" * room) == room
            with pytest.raises(BlockingIOError):
                os.write(fd, b"\n")
        finally:
            os.close(fd)
        yield writing
    finally:
        os.close(reading)
        os.close(writing)


def _opened_where_read(fifo: Path) -> int | None:
    """Return a descriptor to write to, once there is a reader."""
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None
