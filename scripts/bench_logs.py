"""Measures the logs of `orch up`: lines a second through it, and how soon Ctrl-C is obeyed in a flood.

    scripts/bench logs [--rounds 5] [--lines 200000] [--tasks 4]

Each round runs what is compared one after the other: a busy machine slows all of them. Medians are shown.
"""

from __future__ import annotations

import argparse
import os
import pty
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

ORCH = Path(sys.executable).parent / "orch"
FLOOD = """
import os, sys
lines = int(sys.argv[1])
first = 0
while lines < 0 or first < lines:
    last = first + 100 if lines < 0 else min(first + 100, lines)
    numbers = range(first, last)
    text = b"".join(b"step %09d loss: 0.12345 accuracy: 0.98765 as many logs have\\n" % n for n in numbers)
    while text:
        text = text[os.write(1, text):]
    first = last
"""
LOOP = """
for i in $(seq 0 $(($1 - 1))); do
  "$2" "$3" "$4" | sed "s/^/worker:$i | /" &
done
wait
"""


class Bench:
    """One directory for the runs and outputs of all rounds."""

    def __init__(self, directory: Path, tasks: int, lines: int) -> None:
        self.tasks = tasks
        self.lines = lines
        self.flood = directory / "flood.py"
        self.flood.write_text(FLOOD)
        self.out = directory / "out"
        self.state = directory / "state"
        self.env = os.environ | {"XDG_STATE_HOME": str(self.state), "NO_COLOR": "1"}

    def up(self, lines: int) -> list[str]:
        up = [str(ORCH), "up", "--workers", str(self.tasks), "--name", "bench", "--grace", "10"]
        return [*up, "--", sys.executable, str(self.flood), str(lines)]

    def timed(self, argv: list[str]) -> float:
        """Seconds that the command took, its output in a file."""
        with self.out.open("wb") as out:
            start = time.perf_counter()
            subprocess.run(argv, stdout=out, stderr=subprocess.DEVNULL, env=self.env, check=True)
            return time.perf_counter() - start

    def merged(self) -> float:
        """Seconds of the flood under `orch up`, without what it takes to start and end tasks of no lines."""
        empty = self.timed(self.up(0))
        full = self.timed(self.up(self.lines))
        self.check(b"worker:0 | step ")
        return full - empty

    def whole(self) -> float:
        seconds = self.timed(self.up(self.lines))
        self.check_raw()
        return seconds

    def replayed(self) -> float:
        seconds = self.timed([str(ORCH), "logs", "bench"])
        self.check(b"worker:0 | step ")
        return seconds

    def shell_loop(self) -> float:
        argv = ["bash", "-c", LOOP, "-", str(self.tasks), sys.executable, str(self.flood), str(self.lines)]
        return self.timed(argv)

    def interrupted_plain(self) -> float:
        """Seconds from Ctrl-C to the end of `orch up` with its output in a pipe."""
        with subprocess.Popen(
            self.up(-1),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self.env,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            return self._interrupted(process, process.stdout.fileno())

    def interrupted_terminal(self) -> float:
        """The same with a terminal, whose footer is on."""
        master, terminal = pty.openpty()
        env = self.env | {"TERM": "xterm-256color"}
        with subprocess.Popen(
            self.up(-1), stdin=terminal, stdout=terminal, stderr=terminal, env=env, start_new_session=True
        ) as process:
            os.close(terminal)
            try:
                return self._interrupted(process, master)
            finally:
                os.close(master)

    def _interrupted(self, process: subprocess.Popen[bytes], fd: int) -> float:
        reader = threading.Thread(target=_read_away, args=(fd,), daemon=True)
        _read_until_flood(fd)
        reader.start()
        process.send_signal(signal.SIGINT)
        start = time.perf_counter()
        code = process.wait()
        seconds = time.perf_counter() - start
        reader.join()
        if code != 130:
            raise SystemExit(f"orch up ended with {code} after Ctrl-C, not 130")
        return seconds

    def clear(self) -> None:
        """Remove the round's runs: an endless flood fills a disk."""
        shutil.rmtree(self.state)

    def check(self, start: bytes) -> None:
        """Every line is there and has its prefix."""
        data = self.out.read_bytes()
        expected = self.tasks * self.lines
        if data.count(b"\n") != expected or data.count(start) != self.lines:
            raise SystemExit(f"{expected} lines were written, {data.count(bytes([10]))} came out")

    def check_raw(self) -> None:
        """Every byte is in the raw logs."""
        one = subprocess.run(
            [sys.executable, str(self.flood), str(self.lines)], stdout=subprocess.PIPE, check=True
        ).stdout
        runs = self.state / "orch" / "runs"
        newest = max(runs.glob("bench-*"), key=lambda path: path.stat().st_mtime_ns)
        logs = sorted((newest / "logs").glob("*.log"))
        if len(logs) != self.tasks or any(log.read_bytes() != one for log in logs):
            raise SystemExit("the raw logs are not what the tasks wrote")


def _read_until_flood(fd: int) -> None:
    seen = 0
    while seen < 1 << 20:
        seen += len(os.read(fd, 65536))


def _read_away(fd: int) -> None:
    try:
        while os.read(fd, 65536):
            pass
    except OSError:  # the terminal's last user has left
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the logs of orch up.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--tasks", type=int, default=4)
    options = parser.parse_args()
    total = options.lines * options.tasks
    taken: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as directory:
        bench = Bench(Path(directory), options.tasks, options.lines)
        measured: dict[str, Callable[[], float]] = {
            "orch up, merged plain output": bench.merged,
            "orch up, start and end included": bench.whole,
            "orch logs, replay": bench.replayed,
            "shell loop with sed (not in order)": bench.shell_loop,
        }
        ended = {
            "Ctrl-C to the end, output in a pipe": bench.interrupted_plain,
            "Ctrl-C to the end, on a terminal": bench.interrupted_terminal,
        }
        for _ in range(options.rounds):
            for name, run in (measured | ended).items():
                taken[name].append(run())
            bench.clear()
        print(f"{options.tasks} tasks x {options.lines:,} lines, medians of {options.rounds} rounds")
        for name in measured:
            seconds = statistics.median(taken[name])
            print(f"  {name:<36} {seconds:6.2f} s  {total / seconds:>12,.0f} lines/s")
        for name in ended:
            worst = max(taken[name])
            print(f"  {name:<36} {statistics.median(taken[name]):6.2f} s  (slowest {worst:.2f} s)")


if __name__ == "__main__":
    main()
