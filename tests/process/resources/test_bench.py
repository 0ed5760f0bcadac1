"""`scripts/bench logs`, whose tasks write without end, with SIGINT ignored as in the background of a shell."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from waiting import PATIENCE_S, until

BENCHMARKS = Path(__file__).parents[3] / "scripts/benchmarks"
IGNORING = ("sh", "-c", "trap '' INT; exec \"$@\"", "-", sys.executable)
# The measurement that floods until it interrupts `orch up`.
FLOODS = """
import bench_logs
with bench_logs.bench("logs", "x", 1, lines=9, tasks=1) as measured:
    measured.line("x", "s").orch.append(bench_logs.Logs(measured).interrupted(is_terminal=False))
"""
MOST_BYTES = 1 << 30


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


@pytest.mark.parametrize("number", [0, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Whether it ends by itself or is ended."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS))
    words = [str(BENCHMARKS / "bench_logs.py"), "--rounds", "1", "--lines", "100", "--tasks", "1"]
    with (tmp_path.parent / "output").open("wb") as output:
        bench = subprocess.Popen(
            [*IGNORING, *(words if number else ("-c", FLOODS))], stdout=output, stderr=output
        )
    try:
        until(lambda: [*tmp_path.glob("orch-bench-*/state/orch/runs/bench-*/logs/worker-0.log")])
        # A failure must not fill the disk. Its children inherit the limit.
        assert psutil.Process(bench.pid).rlimit(psutil.RLIMIT_FSIZE)[0] == MOST_BYTES
        if number:
            bench.send_signal(number)
        code = bench.wait(PATIENCE_S)
        until(lambda: not processes(tmp_path))
    finally:
        bench.kill()
        bench.wait()
    if number != signal.SIGKILL:
        assert code == (128 + number if number else 0), (tmp_path.parent / "output").read_text()
        assert not [*tmp_path.glob("orch-bench-*")]
