"""Output streams that are full, closed by their reader, or do not block."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from orch_command import ORCH, Orch
from waiting import PATIENCE_S, until

_SILENT = ("sh", "-c", "echo first; exec sleep 600")
_FLOOD = ("python3", "-c", "print('first'); [print('line', i) for i in range(30_000)]")


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


def _code_with_head(orch: Orch, *words: str) -> int:
    """The exit code of `orch WORDS | head -1`, which says nothing about its closed pipe."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([str(ORCH), *words], cwd=orch.directory, env=orch.environ(), **streams) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            assert process.stdout.readline() == b"worker:0 | first\n"
            process.stdout.close()
            code = process.wait(PATIENCE_S)
            said = process.stderr.read()
            assert b"Traceback" not in said and b"Broken pipe" not in said
            return code
        finally:
            process.kill()


def test_closed_pipe_stops_a_run(orch: Orch) -> None:
    for command in (_SILENT, ("sh", "-c", "echo first; while :; do echo y; sleep 0.01; done")):
        assert _code_with_head(orch, "up", "--", *command) == 141
        result = orch.result(orch.run_dirs()[-1])
        assert (result["outcome"], result["exit_code"]) == ("stopped", 141)


def test_closed_pipe_ends_logs(orch: Orch) -> None:
    assert orch("up", "-q", "--tasks", "0", "--", *_FLOOD).code == 0
    assert _code_with_head(orch, "logs") == 0
    assert orch("up", "--wait", "ready", "--", *_SILENT).code == 0
    assert _code_with_head(orch, "logs", "-f") == 0
    assert orch.status()["run"]["state"] == "running"


def test_all_is_written_to_a_stream_that_does_not_block(orch: Orch) -> None:
    assert orch("up", "-q", "-n", "2", "--", "true").code == 0
    for words in (("config", "--json", "-n", "40", "--", "true"), ("status",)):
        whole = _run(orch, *words, stdout=subprocess.PIPE).stdout
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        room = os.write(writing, b"x" * (1 << 20))
        os.read(reading, 4096)  # a page, so that a part fits
        streams = {"stdout": writing, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(
            [str(ORCH), *words], cwd=orch.directory, env=orch.environ(), **streams
        ) as process:
            os.close(writing)
            with os.fdopen(reading, "rb") as pipe:
                until(lambda process=process: _waits_or_has_ended(process))
                written = pipe.read()
            assert process.wait(PATIENCE_S) == 0, words
        assert len(written) == room - 4096 + len(whole), words


def _waits_or_has_ended(process: subprocess.Popen[bytes]) -> bool:
    wchan = Path(f"/proc/{process.pid}/wchan")
    return process.poll() is not None or "poll" in wchan.read_text()


def test_detached_run_is_stopped_if_its_id_cannot_be_written(orch: Orch) -> None:
    for words in ((), ("--wait", "ready", "--json")):
        with Path("/dev/full").open("wb") as full:
            done = _run(orch, "up", "-d", *words, "--", *_SILENT, stdout=full, stderr=subprocess.PIPE)
        assert done.returncode == 125
        assert b"standard output: No space left on device" in done.stderr and b"was stopped" in done.stderr
        assert orch.result(orch.run_dirs()[-1])["outcome"] == "stopped"


def test_full_stderr_does_not_change_the_exit_code(orch: Orch) -> None:
    codes = {("up", "--nonsense"): 2, ("up", "-n", "x"): 2, ("status", "none"): 3}
    with Path("/dev/full").open("wb") as full:
        found = {words: _run(orch, *words, stderr=full, stdout=subprocess.DEVNULL) for words in codes}
    assert {words: done.returncode for words, done in found.items()} == codes
