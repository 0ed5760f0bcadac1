"""`scripts/bench logs`, whose tasks write without end, with SIGINT ignored as in the background of a shell."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from waiting import PATIENCE_S, until

SCRIPT = Path(__file__).parents[3] / "scripts/benchmarks/bench_logs.py"
IGNORING = ("sh", "-c", "trap '' INT; exec \"$@\"", "-", sys.executable, str(SCRIPT))
MOST_BYTES = 1 << 30


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A benchmark whose files are in `tmp_path`. Fails a test that leaves a process of it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with (tmp_path.parent / "output").open("wb") as output:
        words = (*IGNORING, "--rounds", "1", "--lines", "100", "--tasks", "1")
        process = subprocess.Popen(words, stdout=output, stderr=output)
    yield process
    process.kill()
    process.wait()
    until(lambda: not processes(tmp_path))


def processes(directory: Path) -> list[psutil.Process]:
    """The processes that have this directory for temporary files."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != psutil.Process().pid and process.environ().get("TMPDIR") == str(directory):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_benchmark_in_the_background_ends_its_flood(bench: subprocess.Popen[bytes], tmp_path: Path) -> None:
    # A failure must not fill the disk.
    psutil.Process(bench.pid).rlimit(psutil.RLIMIT_FSIZE, (MOST_BYTES, MOST_BYTES))
    assert bench.wait(2 * PATIENCE_S) == 0, (tmp_path.parent / "output").read_text()
    assert not processes(tmp_path) and not [*tmp_path.glob("orch-bench-*")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_benchmark_that_was_ended(
    bench: subprocess.Popen[bytes], tmp_path: Path, number: signal.Signals
) -> None:
    until(lambda: [*tmp_path.glob("orch-bench-*/state/orch/runs/bench-*/logs/worker-0.log")])
    assert psutil.Process(bench.pid).rlimit(psutil.RLIMIT_FSIZE)[0] == MOST_BYTES  # its children inherit it
    bench.send_signal(number)
    code = bench.wait(PATIENCE_S)
    until(lambda: not processes(tmp_path))
    if number == signal.SIGKILL:
        return
    assert code == 128 + number
    assert not [*tmp_path.glob("orch-bench-*")]
