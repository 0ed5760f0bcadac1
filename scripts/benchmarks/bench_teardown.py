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
from pathlib import Path

import psutil
from bench_pairs import ORCH, Bench, bench, waiting_at_most

EXIT_AIM_S, KILL_AIM_S = 0.2, 1.0
TASK = """
import os, sys, time
out = os.path.join(sys.argv[1], str(os.getpid()))
open(out, "w").close()
if sys.argv[2] == "stay":
    time.sleep(600)
time.sleep(0.5)
os.rename(out, out + ".part")
with open(out + ".part", "w") as file:
    file.write(repr(time.monotonic()))
os._exit(0)
"""
LOOP = 'for i in $(seq "$1"); do "$2" -c "$3" "$4" end & done; wait'


def up(measured: Bench, out: Path, how: str) -> subprocess.Popen[bytes]:
    words = [ORCH, "up", "--workers", str(measured.given.workers), "--", sys.executable, "-c", TASK]
    quiet = subprocess.DEVNULL
    return subprocess.Popen([*words, str(out), how], stdout=quiet, stderr=quiet, env=measured.env)


def ordinary(measured: Bench) -> float:
    """Seconds from the last task's last output to the exit of `orch up`."""
    out = measured.folder()
    code = up(measured, out, "end").wait()
    gone = time.monotonic()
    if code != 0:
        raise SystemExit(f"orch up ended with {code}")
    return gone - last_output(measured, out)


def by_loop(measured: Bench) -> float:
    out = measured.folder()
    measured.timed(["bash", "-c", LOOP, "-", str(measured.given.workers), sys.executable, TASK, out])
    return time.monotonic() - last_output(measured, out)


def killed(measured: Bench) -> float:
    """Seconds from SIGKILL of one task to the exit of `orch up`, with no task left."""
    out = measured.folder()
    process = up(measured, out, "stay")
    with waiting_at_most(60, "the tasks") as pause:
        while len(list(out.iterdir())) < measured.given.workers:
            pause()
    pids = [int(file.name) for file in out.iterdir()]
    began = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    code = process.wait()
    seconds = time.monotonic() - began
    if code != 137 or any(psutil.pid_exists(pid) for pid in pids):
        raise SystemExit(f"orch up ended with {code}, tasks of {pids} may be left")
    return seconds


def last_output(measured: Bench, out: Path) -> float:
    times = [float(file.read_text()) for file in out.iterdir()]
    if len(times) != measured.given.workers:
        raise SystemExit(f"{len(times)} of {measured.given.workers} tasks ran")
    return max(times)


def main() -> None:
    with bench("teardown", __doc__, rounds=5, workers=4) as measured:
        measures = {
            ordinary: measured.line("last task's exit to orch's exit", "s", EXIT_AIM_S),
            by_loop: measured.line("the same, a shell loop's wait", "s"),
            killed: measured.line("SIGKILL of a task to everything gone", "s", KILL_AIM_S),
        }
        for _ in measured.rounds:
            for measure, line in measures.items():
                line.orch.append(measure(measured))


if __name__ == "__main__":
    main()
