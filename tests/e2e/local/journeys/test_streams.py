"""Output streams that are full, closed by their reader, or do not block, and signals while they are."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from orch_command import ORCH, Orch, Started
from waiting import PATIENCE_S, until

_SILENT = ("sh", "-c", "echo first; exec sleep 600")
_FLOOD = ("python3", "-c", "print('first'); [print('line', i) for i in range(30_000)]")
_FULL = Path("/dev/full")
_SAVES_SLOWLY = """
import pathlib, signal, sys, time
def save(*_):
    for step in range(21):
        print("saving", flush=True)
        time.sleep(0.05)
    pathlib.Path("saved").write_text("yes")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("here", flush=True)
time.sleep(600)
"""


def _newest(orch: Orch) -> tuple[str, int]:
    """The outcome and the exit code of the newest run."""
    result = orch.result(orch.run_dirs()[-1])
    return result["outcome"], result["exit_code"]


def _code_with_head(orch: Orch, *words: str) -> int:
    """The exit code of `orch WORDS | head -1`, which says nothing about its closed pipe."""
    with orch.piped(*words) as (started, pipe):
        assert pipe.readline() == b"worker:0 | first\n"
        pipe.close()
        done = started.finish()
        assert "Traceback" not in done.err and "Broken pipe" not in done.err
        return done.code


def test_closed_pipe_stops_a_run(orch: Orch) -> None:
    for command in (_SILENT, ("sh", "-c", "echo first; while :; do echo y; sleep 0.01; done")):
        assert _code_with_head(orch, "up", "--", *command) == 141
        assert _newest(orch) == ("stopped", 141)


def test_closed_pipe_during_stop_does_not_kill(orch: Orch) -> None:
    """`orch up | tee log`: Ctrl-C also ends tee, and the task still gets its grace period."""
    script = orch.script("saves.py", _SAVES_SLOWLY)
    with orch.piped("up", "--grace", "60s", "--", "python3", script) as (client, pipe):
        assert any(b"here" in line for line in iter(pipe.readline, b""))
        client.signal(signal.SIGINT)
        assert any(b"saving" in line for line in iter(pipe.readline, b""))
        pipe.close()
        assert client.finish().code == 130
    assert (orch.directory / "saved").exists()


def test_closed_pipe_ends_logs(orch: Orch) -> None:
    assert orch("up", "-q", "--tasks", "0", "--", *_FLOOD).code == 0
    assert _code_with_head(orch, "logs") == 0
    assert orch("up", "--wait", "ready", "--", *_SILENT).code == 0
    assert _code_with_head(orch, "logs", "-f") == 0
    assert orch.status()["run"]["state"] == "running"


def test_all_is_written_to_a_stream_that_does_not_block(orch: Orch) -> None:
    assert orch("up", "-q", "-n", "2", "--", "true").code == 0
    for words in (("config", "--json", "-n", "40", "--", "true"), ("status",)):
        whole = orch.pipe(*words, env={}).out.encode()
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        room = os.write(writing, b"x" * (1 << 20))
        os.read(reading, 4096)  # a page, so that a part fits
        started = orch.start(*words, streams={"stdout": writing, "stderr": Path(os.devnull)})
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            until(lambda started=started: _waits_or_has_ended(started))
            written = pipe.read()
        assert started.finish().code == 0, words
        assert len(written) == room - 4096 + len(whole), words


def _waits_or_has_ended(started: Started) -> bool:
    return started.ended or "poll" in Path(f"/proc/{started.process.pid}/wchan").read_text()


def test_run_whose_output_cannot_be_written_is_stopped(orch: Orch) -> None:
    """Unlike a closed pipe, a full disk is an error. A detached run is stopped if its id cannot be written."""
    for words in ((), ("-d",), ("--wait", "ready", "--json")):
        done = orch.start("up", *words, "--", *_SILENT, streams={"stdout": _FULL}).finish()
        assert done.code == 125
        assert "standard output: No space left on device" in done.err and "Exception ignored" not in done.err
        assert ("was stopped" in done.err) == bool(words) and "Traceback" not in done.err
        assert _newest(orch)[0] == "stopped"


def test_full_stderr_does_not_change_the_exit_code(orch: Orch) -> None:
    codes = {("up", "--nonsense"): 2, ("up", "-n", "x"): 2, ("status", "none"): 3}
    streams = {"stderr": _FULL, "stdout": Path(os.devnull)}
    assert {words: orch.start(*words, streams=streams).finish().code for words in codes} == codes


def test_closed_standard_streams(orch: Orch) -> None:
    """`orch up >&- 2>&-`: files that orch opens do not become stdout, and the exit code is the one of the run."""
    command = f"'{ORCH}' up -- sh -c 'echo words; exit 3' <&- >&- 2>&-"
    done = subprocess.run(
        ["bash", "-c", command], cwd=orch.directory, env=orch.environ(), timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, _newest(orch)[1]) == (3, 3)
    assert (orch.run_dir() / "logs" / "worker-0.log").read_text() == "words\n"


@contextmanager
def _full_pipe() -> Iterator[int]:
    """The descriptor of a pipe to which nothing more can be written."""
    reading, writing = os.pipe()
    # Through a file description of our own: other writers must still block.
    fd = os.open(f"/proc/self/fd/{writing}", os.O_WRONLY | os.O_NONBLOCK)
    room = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
    assert os.write(fd, b"\n" * room) == room
    yield writing
    for each in (fd, reading, writing):
        os.close(each)


def test_signal_during_blocked_report_does_not_change_exit_code(orch: Orch) -> None:
    """A second signal skips the report, and the exit code is still the one of the run."""
    with _full_pipe() as full:
        client = orch.start("up", "-n", "2", "--", "sh", "-c", "exit 3", streams={"stderr": full})
        until(lambda: orch.run_dirs() and (orch.run_dir() / "result.json").exists())
        until(lambda: client.ended or client.signal(signal.SIGTERM))
    assert client.finish().code == 3


@pytest.mark.parametrize(("blocked", "while_it_runs"), [("stdout", True), ("stderr", False)])
def test_two_signals_end_the_client_of_a_blocked_pipe(orch: Orch, blocked: str, while_it_runs: bool) -> None:
    """The first stops the run. The second kills it, or ends the client although its output is not read."""
    script = f"trap '{':' if while_it_runs else 'exit'}' INT TERM; echo here; while :; do sleep 0.1; done"
    with _full_pipe() as full:
        client = orch.start("up", "--grace", "1h", "--", "sh", "-c", script, streams={blocked: full})
        until(lambda: orch.run_dirs() and orch.status()["run"]["state"] == "running")
        client.signal(signal.SIGINT)
        state = "stopping" if while_it_runs else "stopped"
        until(lambda: orch.status()["run"]["state"] == state)
        client.signal(signal.SIGINT)
        assert client.finish().code == 130
