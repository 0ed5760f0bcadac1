"""Measures the end of a run: from the last task's exit to the exit of orch, when everything is gone.

    scripts/bench teardown [--rounds 5] [--workers 4] [--json FILE]

It measures an ordinary end, and a SIGKILL of one of the tasks (from the kill until everything is gone). The `wait` of
the shell loop returns when all tasks have exited by themselves: after a kill it waits for the others, so the kill
has no comparison.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
from bench_pairs import ORCH, Bench, bench
from waiting import until

EXIT_AIM_S, KILL_AIM_S = 0.2, 1.0
# Writes to a file, which has its pid as its name, when it ends.
TASK = """
import os, sys, time
file = open(os.path.join(sys.argv[1], str(os.getpid())), "w")
time.sleep(float(sys.argv[2]))
file.write(repr(time.monotonic()))
file.close()
os._exit(0)
"""
SHORT_S, LONG_S = "0.5", "600"
LOOP = 'for i in $(seq "$1"); do "$2" -c "$3" "$4" "$5" & done; wait'


def up(measured: Bench, out: Path, seconds: str) -> list[str]:
    workers = str(measured.given.workers)
    return [str(ORCH), "up", "--workers", workers, "--", sys.executable, "-c", TASK, str(out), seconds]


def shell_loop(measured: Bench, out: Path, seconds: str) -> list[str]:
    workers = str(measured.given.workers)
    return ["bash", "-c", LOOP, "-", workers, sys.executable, TASK, str(out), seconds]


def ordinary(measured: Bench, by_orch: bool) -> float:
    """Seconds from the last task's last output to the exit of the command."""
    out = measured.folder()
    measured.timed((up if by_orch else shell_loop)(measured, out, SHORT_S))
    gone = time.monotonic()
    times = [float(file.read_text()) for file in out.iterdir()]
    if len(times) != measured.given.workers:
        raise SystemExit(f"{len(times)} of {measured.given.workers} tasks ran")
    return gone - max(times)


def killed(measured: Bench) -> float:
    """Seconds from SIGKILL of one task to the exit of `orch up`, with no task left."""
    out, quiet = measured.folder(), subprocess.DEVNULL
    process = subprocess.Popen(up(measured, out, LONG_S), stdout=quiet, stderr=quiet, env=measured.env)
    until(lambda: len(list(out.iterdir())) == measured.given.workers)
    pids = [int(file.name) for file in out.iterdir()]
    began = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    code = process.wait()
    seconds = time.monotonic() - began
    if code != 137 or any(psutil.pid_exists(pid) for pid in pids):
        raise SystemExit(f"orch up ended with {code}, tasks of {pids} may be left")
    return seconds


def main() -> None:
    with bench("teardown", __doc__, rounds=5, workers=4) as measured:
        ends = measured.line("last task's exit to orch's exit", "s", EXIT_AIM_S)
        measured.take(ends, partial(ordinary, measured, True))
        loop = measured.line("the same, a shell loop's wait", "s")
        measured.take(loop, partial(ordinary, measured, False))
        kill = measured.line("SIGKILL of a task to everything gone", "s", KILL_AIM_S)
        measured.take(kill, partial(killed, measured))


if __name__ == "__main__":
    main()
