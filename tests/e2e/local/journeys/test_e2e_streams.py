"""Output streams that are full, closed by their reader, or do not block."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from orch_command import ORCH, Orch
from waiting import PATIENCE_S, until

_SILENT = ("sh", "-c", "echo first; exec sleep 600")


def _run(orch: Orch, *words: str, **streams: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [str(ORCH), *words],
        cwd=orch.directory,
        env=orch.environ(),
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE_S,
        check=False,
        **streams,
    )


@contextmanager
def _read_by_head(orch: Orch, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`orch WORDS | head -1`, whose reader has left."""
    with subprocess.Popen(
        [str(ORCH), *words],
        cwd=orch.directory,
        env=orch.environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"worker:0 | first\n"
            process.stdout.close()
            yield process
        finally:
            process.kill()


def test_closed_pipe_stops_a_silent_run(orch: Orch) -> None:
    with _read_by_head(orch, "up", "--", *_SILENT) as up:
        assert up.wait(PATIENCE_S) == 141
    assert orch.result()["outcome"] == "stopped"


def test_closed_pipe_ends_following_a_silent_run(orch: Orch) -> None:
    assert orch("up", "--wait", "ready", "--", *_SILENT).code == 0
    with _read_by_head(orch, "logs", "-f") as logs:
        assert logs.wait(PATIENCE_S) == 0
    assert orch.status()["run"]["state"] == "running"


@pytest.mark.parametrize(
    "words", [("config", "--json", "-n", "40", "--", "true"), ("status", "--json"), ("status",)]
)
def test_all_is_written_to_a_stream_that_does_not_block(orch: Orch, words: tuple[str, ...]) -> None:
    assert orch("up", "-q", "-n", "2", "--", "true").code == 0
    whole = _run(orch, *words, stdout=subprocess.PIPE).stdout
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    room = os.write(writing, b"x" * (1 << 20))
    os.read(reading, 4096)  # a page, so that a part fits
    with subprocess.Popen(
        [str(ORCH), *words], cwd=orch.directory, env=orch.environ(), stdout=writing, stderr=subprocess.DEVNULL
    ) as process:
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            until(lambda: _waits_or_has_ended(process))
            written = pipe.read()
        assert process.wait(PATIENCE_S) == 0
    assert len(written) == room - 4096 + len(whole)


def _waits_or_has_ended(process: subprocess.Popen[bytes]) -> bool:
    wchan = Path(f"/proc/{process.pid}/wchan")
    return process.poll() is not None or "poll" in wchan.read_text()


@pytest.mark.parametrize("words", [(), ("--wait", "ready"), ("--wait", "ready", "--json")])
def test_detached_run_is_stopped_if_its_id_cannot_be_written(orch: Orch, words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = _run(orch, "up", "-d", *words, "--", *_SILENT, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 125
    assert b"standard output: No space left on device" in done.stderr and b"was stopped" in done.stderr
    assert orch.result()["outcome"] == "stopped"


@pytest.mark.parametrize(
    ("words", "code"),
    [(("up", "--nonsense"), 2), (("nonsense",), 2), (("up", "-n", "x"), 2), (("status", "none"), 3)],
)
def test_full_stderr_does_not_change_the_exit_code(orch: Orch, words: tuple[str, ...], code: int) -> None:
    with Path("/dev/full").open("wb") as full:
        assert _run(orch, *words, stderr=full, stdout=subprocess.DEVNULL).returncode == code
