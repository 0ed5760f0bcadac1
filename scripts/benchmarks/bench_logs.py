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
import threading
import time

from bench_pairs import ORCH, Bench, bench, pair

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

    def merged_rate(self) -> float:
        """Lines a second of the flood under `orch up`, without what it takes to start and end tasks of no lines."""
        empty = self.timed(self.up(0))
        full = self.timed(self.up(self.lines))
        self.check_prefixes()
        return self.tasks * self.lines / (full - empty)

    def whole(self) -> float:
        """Seconds, with start and end. Checks the raw logs."""
        seconds = self.timed(self.up(self.lines))
        one = subprocess.run(
            [sys.executable, str(self.flood), str(self.lines)], stdout=subprocess.PIPE, check=True
        ).stdout
        runs = (self.bench.state / "orch" / "runs").glob("bench-*")
        newest = max(runs, key=lambda path: path.stat().st_mtime_ns)
        logs = sorted((newest / "logs").glob("*.log"))
        if len(logs) != self.tasks or any(log.read_bytes() != one for log in logs):
            raise SystemExit("the raw logs are not what the tasks wrote")
        return seconds

    def replayed(self) -> float:
        seconds = self.timed([str(ORCH), "logs", "bench"])
        self.check_prefixes()
        return seconds

    def check_prefixes(self) -> None:
        """Every line is there and has its prefix."""
        data, expected = self.out.read_bytes(), self.tasks * self.lines
        if data.count(b"\n") != expected or data.count(b"worker:0 | step ") != self.lines:
            raise SystemExit(f"{expected} lines were written, {data.count(bytes([10]))} came out")

    def shell_loop(self) -> float:
        argv = ["bash", "-c", LOOP, "-", str(self.tasks), sys.executable, str(self.flood), str(self.lines)]
        return self.timed(argv)

    def honcho_rate(self) -> float:
        """Merged lines a second, from the first line to the last."""
        procfile = self.bench.directory / "Procfile"
        command = f"{sys.executable} {self.stay} {self.flood} {HONCHO_LINES}"
        procfile.write_text("".join(f"worker-{task}: {command}\n" for task in range(self.tasks)))
        wanted, seen, began = self.tasks * HONCHO_LINES, 0, 0.0
        with self.started([sys.executable, "-m", "honcho", "-f", str(procfile), "start"]) as process:
            assert process.stdout is not None
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
        with self.started(self.up(-1)) as process:
            assert process.stdout is not None
            return interrupted(process, process.stdout.fileno())

    def interrupted_terminal(self) -> float:
        """The same with a terminal, whose footer is on."""
        master, terminal = pty.openpty()
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
        with self.started(self.up(-1), env={"TERM": "xterm-256color"}, **streams) as process:
            os.close(terminal)
            try:
                return interrupted(process, master)
            finally:
                os.close(master)

    def started(
        self, argv: list[str], env: dict[str, str] | None = None, **streams: int
    ) -> subprocess.Popen[bytes]:
        streams = streams or {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(argv, env=self.bench.env | (env or {}), start_new_session=True, **streams)


def interrupted(process: subprocess.Popen[bytes], fd: int) -> float:
    reader = threading.Thread(target=read_away, args=(fd,), daemon=True)
    seen = 0
    while seen < 1 << 20:
        seen += len(os.read(fd, 65536))
    reader.start()
    process.send_signal(signal.SIGINT)
    start = time.perf_counter()
    code = process.wait()
    seconds = time.perf_counter() - start
    reader.join()
    if code != 130:
        raise SystemExit(f"orch up ended with {code} after Ctrl-C, not 130")
    return seconds


def read_away(fd: int) -> None:
    try:
        while os.read(fd, 65536):
            pass
    except OSError:  # the terminal's last user has left
        pass


def main() -> None:
    with bench("logs", __doc__, rounds=5, lines=200_000, tasks=4) as measured:
        logs, total = Logs(measured), measured.given.lines * measured.given.tasks
        merged = measured.line("merged plain output", "/s", HONCHO_AIM, "honcho", at_least=True)
        whole = measured.line("the same, start and end included", "/s")
        replay = measured.line("orch logs, replay", "/s")
        loop = measured.line("shell loop with sed (keeps no order)", "/s")
        pipe = measured.line("Ctrl-C to the end, output in a pipe", "s")
        terminal = measured.line("Ctrl-C to the end, on a terminal", "s")
        for round_ in measured.rounds:
            pair(merged, logs.merged_rate, logs.honcho_rate, round_)
            whole.orch.append(total / logs.whole())
            replay.orch.append(total / logs.replayed())
            loop.orch.append(total / logs.shell_loop())
            pipe.orch.append(logs.interrupted_plain())
            terminal.orch.append(logs.interrupted_terminal())
            measured.clear()  # an endless flood fills a disk


if __name__ == "__main__":
    main()
