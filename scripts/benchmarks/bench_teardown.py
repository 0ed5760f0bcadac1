"""Measures the end of a run: from the last task's exit to the exit of orch, when everything is gone.

    scripts/bench teardown [--rounds 5] [--workers 4] [--json FILE]

Of an ordinary end, and of a SIGKILL of one of the tasks (from the kill to everything gone). The shell loop's `wait`
returns when the tasks have exited by themselves; it has nothing to compare with the kill, after which it waits on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from bench_cluster import ORCH
from bench_pairs import Compared, options, report, waiting_at_most

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
LOOP = 'for i in $(seq "$1"); do "$2" "$3" "$4" end & done; wait'


class Ends:
    def __init__(self, directory: Path, workers: int) -> None:
        self._directory = directory
        self._workers = workers
        self._script = directory / "task.py"
        self._script.write_text(TASK)
        self._env = os.environ | {"XDG_STATE_HOME": str(directory / "state"), "NO_COLOR": "1"}
        self._count = 0

    def ordinary(self) -> float:
        """Seconds from the last task's last words to the exit of `orch up`."""
        out = self._folder()
        process = self._up(out, "end")
        code = process.wait()
        gone = time.monotonic()
        if code != 0:
            raise SystemExit(f"orch up ended with {code}")
        return gone - self._last_words(out)

    def by_loop(self) -> float:
        out = self._folder()
        argv = ["bash", "-c", LOOP, "-", str(self._workers), sys.executable, str(self._script), str(out)]
        subprocess.run(argv, env=self._env, check=True)
        return time.monotonic() - self._last_words(out)

    def killed(self) -> float:
        """Seconds from SIGKILL of one task to the exit of `orch up`, with no task left."""
        out = self._folder()
        process = self._up(out, "stay")
        with waiting_at_most(60, "the tasks") as pause:
            while len(list(out.iterdir())) < self._workers:
                pause()
        pids = [int(file.name) for file in out.iterdir()]
        began = time.monotonic()
        os.kill(pids[1], signal.SIGKILL)
        code = process.wait()
        seconds = time.monotonic() - began
        if code != 137 or any(psutil.pid_exists(pid) for pid in pids):
            raise SystemExit(f"orch up ended with {code}, tasks of {pids} may be left")
        return seconds

    def _up(self, out: Path, how: str) -> subprocess.Popen[bytes]:
        up = [str(ORCH), "up", "--workers", str(self._workers), "--", sys.executable, str(self._script)]
        quiet = subprocess.DEVNULL
        return subprocess.Popen([*up, str(out), how], stdout=quiet, stderr=quiet, env=self._env)

    def _folder(self) -> Path:
        self._count += 1
        folder = self._directory / f"out-{self._count}"
        folder.mkdir()
        return folder

    def _last_words(self, out: Path) -> float:
        times = [float(file.read_text()) for file in out.iterdir()]
        if len(times) != self._workers:
            raise SystemExit(f"{len(times)} of {self._workers} tasks ran")
        return max(times)


def main() -> None:
    parser = options("Measures the end of a run.", rounds=5)
    parser.add_argument("--workers", type=int, default=4)
    arguments = parser.parse_args()
    ordinary = Compared("last task's exit to orch's exit", "s", "", EXIT_AIM_S)
    loop = Compared("the same, a shell loop's wait", "s", "")
    killed = Compared("SIGKILL of a task to everything gone", "s", "", KILL_AIM_S)
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as directory:
        ends = Ends(Path(directory), arguments.workers)
        for _ in range(arguments.rounds):
            ordinary.orch.append(ends.ordinary())
            loop.orch.append(ends.by_loop())
            killed.orch.append(ends.killed())
    report("teardown", [ordinary, loop, killed], arguments.json)


if __name__ == "__main__":
    main()
