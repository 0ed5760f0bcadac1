"""Measures the logs of `orch up` beside honcho's: merged lines a second, and how soon Ctrl-C is obeyed in a flood.

    scripts/bench logs [--rounds 5] [--lines 200000] [--tasks 4] [--json FILE]

Both rates are net of what it takes to start and end (orch) or to start (honcho, by its first line) tasks that write
nothing. honcho ends everything when one task ends, so its tasks stay until all their lines have come out.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from itertools import islice

from bench_pairs import ORCH, Bench, bench

FLOOD = """
import os, sys
lines = int(sys.argv[1])
first, parent = 0, os.getppid()
while (lines < 0 or first < lines) and os.getppid() == parent:
    last = first + 100 if lines < 0 else min(first + 100, lines)
    numbers = range(first, last)
    text = b"".join(b"step %09d loss: 0.12345 accuracy: 0.98765 as many logs have\\n" % n for n in numbers)
    while text:
        text = text[os.write(1, text):]
    first = last
"""
# A task that has written and waits to be ended.
STAY = """
import sys, time
sys.argv[0] = sys.argv.pop(1)
exec(open(sys.argv[0]).read())
until = time.monotonic() + 600
while os.getppid() == parent and time.monotonic() < until:
    time.sleep(0.1)
"""
HONCHO_LINES = 5_000
HONCHO_AIM = 40
LOOP = """
for i in $(seq 0 $(($1 - 1))); do
  "$2" "$3" "$4" | sed "s/^/worker:$i | /" &
done
wait
"""


class Logs:
    """Measures the logs of tasks that write `lines` lines each."""

    def __init__(self, measured: Bench) -> None:
        self.bench = measured
        self.tasks, self.lines = measured.given.tasks, measured.given.lines
        self.flood, self.stay = measured.directory / "flood.py", measured.directory / "stay.py"
        self.flood.write_text(FLOOD)
        self.stay.write_text(STAY)
        self.out = measured.directory / "out"

    def up(self, lines: int) -> list[str]:
        up = [str(ORCH), "up", "--workers", str(self.tasks), "--name", "bench", "--grace", "10"]
        return [*up, "--", sys.executable, str(self.flood), str(lines)]

    def timed(self, argv: list[str]) -> float:
        """Seconds that the command took, its output in a file."""
        with self.out.open("wb") as out:
            return self.bench.timed(argv, out)

    def rate(self, argv: list[str]) -> float:
        """Lines a second of a command, with start and end."""
        return self.tasks * self.lines / self.timed(argv)

    def merged_rate(self) -> float:
        """Lines a second of the flood under `orch up`, without what it takes to start and end tasks of no lines."""
        empty = self.timed(self.up(0))
        full = self.timed(self.up(self.lines))
        self.check_prefixes()
        return self.tasks * self.lines / (full - empty)

    def whole_rate(self) -> float:
        """Lines a second with start and end. Checks the raw logs."""
        self.bench.clear()
        rate = self.rate(self.up(self.lines))
        one = subprocess.check_output([sys.executable, str(self.flood), str(self.lines)])
        logs = [*self.bench.state.glob("orch/runs/bench-*/logs/*.log")]
        if len(logs) != self.tasks or any(log.read_bytes() != one for log in logs):
            raise SystemExit("the raw logs are not what the tasks wrote")
        return rate

    def replay_rate(self) -> float:
        """Lines a second of `orch logs`, of the last run."""
        rate = self.rate([str(ORCH), "logs", "bench"])
        self.check_prefixes()
        return rate

    def loop_rate(self) -> float:
        loop = ["bash", "-c", LOOP, "-", str(self.tasks)]
        return self.rate([*loop, sys.executable, str(self.flood), str(self.lines)])

    def check_prefixes(self) -> None:
        """Every line is there and has its prefix."""
        data, expected = self.out.read_bytes(), self.tasks * self.lines
        if data.count(b"\n") != expected or data.count(b"worker:0 | step ") != self.lines:
            raise SystemExit(f"{expected} lines were written, {data.count(bytes([10]))} came out")

    def honcho_rate(self) -> float:
        """Merged lines a second, from the first line to the last."""
        procfile = self.bench.directory / "Procfile"
        command = f"{sys.executable} {self.stay} {self.flood} {HONCHO_LINES}"
        procfile.write_text("".join(f"worker-{task}: {command}\n" for task in range(self.tasks)))
        argv = [sys.executable, "-m", "honcho", "-f", str(procfile), "start"]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(argv, env=self.bench.env, start_new_session=True, **streams) as process:
            assert process.stdout is not None
            lines = (line for line in process.stdout if b" step " in line)
            next(lines)
            began, wanted = time.perf_counter(), self.tasks * HONCHO_LINES
            seen = 1 + sum(1 for _ in islice(lines, wanted - 1))
            seconds = time.perf_counter() - began
            process.terminate()
            process.stdout.read()
        if seen != wanted:
            raise SystemExit(f"{wanted} lines were written, {seen} came out of honcho")
        return seen / seconds

    def interrupted(self, is_terminal: bool) -> float:
        """Seconds from Ctrl-C to the end of `orch up`: its output is a pipe, or a terminal, whose footer is on."""
        ours, its = pty.openpty() if is_terminal else os.pipe()
        streams = {"stdin": its if is_terminal else subprocess.DEVNULL, "stdout": its, "stderr": its}
        env = self.bench.env | {"TERM": "xterm-256color"}
        process = subprocess.Popen(self.up(-1), env=env, start_new_session=True, **streams)
        os.close(its)
        seen, began = 0, 0.0
        with suppress(OSError):  # the terminal's last user has left
            while data := os.read(ours, 1 << 16):
                seen += len(data)
                if not began and seen >= 1 << 20:
                    process.send_signal(signal.SIGINT)
                    began = time.perf_counter()
        code = process.wait()
        seconds = time.perf_counter() - began
        os.close(ours)
        self.bench.clear()  # an endless flood fills a disk
        if code != 130:
            raise SystemExit(f"orch up ended with {code} after Ctrl-C, not 130")
        return seconds


def main() -> None:
    with bench("logs", __doc__, rounds=5, lines=200_000, tasks=4) as measured:
        logs, take = Logs(measured), measured.take
        merged = measured.line("merged plain output", "/s", HONCHO_AIM, "honcho", at_least=True)
        measured.compare(merged, logs.merged_rate, logs.honcho_rate)
        take(measured.line("the same, start and end included", "/s"), logs.whole_rate)
        take(measured.line("orch logs, replay", "/s"), logs.replay_rate)
        take(measured.line("shell loop with sed (keeps no order)", "/s"), logs.loop_rate)
        take(measured.line("Ctrl-C to the end, output in a pipe", "s"), partial(logs.interrupted, False))
        take(measured.line("Ctrl-C to the end, on a terminal", "s"), partial(logs.interrupted, True))


if __name__ == "__main__":
    main()
