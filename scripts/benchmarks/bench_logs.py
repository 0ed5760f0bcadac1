"""Measures the logs of `orch up` beside honcho's: merged lines a second, and how soon Ctrl-C is obeyed in a flood.

    scripts/bench logs [--rounds 5] [--lines 200000] [--tasks 4] [--json FILE]

Both rates are net of what it takes to start and end (orch) or to start (honcho, by its first line) tasks that write
nothing. honcho ends everything when one task ends, so its tasks stay until all their lines have come out.
"""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench_pairs import Compared, options, pair, report

ORCH = Path(sys.executable).parent / "orch"
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


class Bench:
    """Measures all rounds below one directory."""

    def __init__(self, directory: Path, tasks: int, lines: int) -> None:
        self.tasks = tasks
        self.lines = lines
        self.flood = directory / "flood.py"
        self.flood.write_text(FLOOD)
        self.stay = directory / "stay.py"
        self.stay.write_text(STAY)
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

    def merged_rate(self) -> float:
        return self.tasks * self.lines / self.merged()

    def honcho_rate(self) -> float:
        """Merged lines a second, from the first line to the last."""
        procfile = self.out.parent / "Procfile"
        command = f"{sys.executable} {self.stay} {self.flood} {HONCHO_LINES}"
        procfile.write_text("".join(f"worker-{task}: {command}\n" for task in range(self.tasks)))
        honcho = [sys.executable, "-m", "honcho", "-f", str(procfile), "start"]
        with subprocess.Popen(
            honcho, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=self.env, start_new_session=True
        ) as process:
            assert process.stdout is not None
            wanted, seen, began = self.tasks * HONCHO_LINES, 0, 0.0
            for line in process.stdout:
                if b" step " in line:
                    began = began or time.perf_counter()
                    seen += 1
                if seen == wanted:
                    break
            seconds = time.perf_counter() - began
            process.terminate()
            process.stdout.read()
        if seen != wanted:
            raise SystemExit(f"{wanted} lines were written, {seen} came out of honcho")
        return seen / seconds

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
    parser = options("Measures the logs of orch up.", rounds=5)
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--tasks", type=int, default=4)
    arguments = parser.parse_args()
    total = arguments.lines * arguments.tasks
    merged = Compared("merged plain output", "/s", "honcho", HONCHO_AIM, at_least=True)
    whole = Compared("the same, start and end included", "/s", "")
    replay = Compared("orch logs, replay", "/s", "")
    loop = Compared("shell loop with sed (keeps no order)", "/s", "")
    pipe = Compared("Ctrl-C to the end, output in a pipe", "s", "")
    terminal = Compared("Ctrl-C to the end, on a terminal", "s", "")
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as directory:
        bench = Bench(Path(directory), arguments.tasks, arguments.lines)
        for round_ in range(arguments.rounds):
            pair(merged, bench.merged_rate, bench.honcho_rate, round_)
            whole.orch.append(total / bench.whole())
            replay.orch.append(total / bench.replayed())
            loop.orch.append(total / bench.shell_loop())
            pipe.orch.append(bench.interrupted_plain())
            terminal.orch.append(bench.interrupted_terminal())
            bench.clear()
    report(
        f"logs, {arguments.tasks} tasks x {arguments.lines:,} lines",
        [merged, whole, replay, loop, pipe, terminal],
        arguments.json,
    )


if __name__ == "__main__":
    main()
