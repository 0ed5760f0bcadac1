"""Measures what the page costs a run: its steps with `orch ui` and three readers, beside the same run without.

    scripts/bench page [--rounds 5] [--workers 2] [--many 1000] [--steps 400] [--json FILE]

A step is computed in Python and prints a line, as Keras does. The readers take what a browser gets of a run: the
document, the last lines, the feed, and every two seconds the list of runs. The server is measured while it shows two
quiet runs, one of them of many tasks.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from bench_pairs import ORCH, Bench, bench, pair, say, waiting_at_most

READERS = 3
RATIO_AIM, CPU_AIM_PERCENT, MEMORY_AIM_MB = 1.02, 2.0, 60.0
# The first seconds of a run and of its readers do not count.
SETTLED_S, QUIET_S, LIST_S = 10.0, 20.0, 2.0
_PATIENCE_S = 120.0
TASK = """
import os, sys, time
steps, out = int(sys.argv[1]), sys.argv[2]
print("Epoch 1/1", flush=True)
while not os.path.exists(os.path.join(out, "go")):
    time.sleep(0.01)
began = time.monotonic()
for step in range(1, steps + 1):
    sum(number * number for number in range(100_000))
    print(f"{step}/{steps} - 0s 9ms/step - loss: {1 / (step + 1):.4f}", flush=True)
with open(os.path.join(out, os.environ["ORCH_TASK"]), "w") as file:
    file.write(repr(time.monotonic() - began))
"""


class Page:
    """`orch ui` of one state directory, and the requests of its browsers."""

    def __init__(self, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [ORCH, "ui", "--port", "0", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
        )
        assert self.process.stdout is not None
        self._address = urlsplit(json.loads(self.process.stdout.read1())["address"])
        opened = self._answer(f"/?{self._address.query}")
        self._cookie = opened.getheader("set-cookie", "").partition(";")[0]

    def _answer(self, path: str, cookie: str = "") -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self._address.netloc, timeout=_PATIENCE_S)
        connection.request("GET", path, headers={"cookie": cookie})
        return connection.getresponse()

    def read(self, path: str) -> dict[str, object]:
        document: dict[str, object] = json.loads(self._answer(path, self._cookie).read())
        return document

    def show(self, run: str) -> None:
        """Let the readers follow a run. Returns when each has all of it."""
        opened = threading.Semaphore(0)
        for _ in range(READERS):
            threading.Thread(target=self._follow, args=(run, opened), daemon=True).start()
        for _ in range(READERS):
            if not opened.acquire(timeout=_PATIENCE_S):
                raise SystemExit(f"the readers: nothing after {_PATIENCE_S:g} s")

    def _follow(self, run: str, opened: threading.Semaphore) -> None:
        """Read what a browser does, until the server ends."""
        document = self.read(f"/api/runs/{run}")
        lines = self.read(f"/api/runs/{run}/lines?tail=2000")
        feed = self._answer(f"/api/runs/{run}/feed?state={document['feed']}.{lines['cursor']}", self._cookie)
        opened.release()
        threading.Thread(target=self._list, daemon=True).start()
        try:
            while feed.read1(1 << 16):
                pass
        except (OSError, http.client.HTTPException):
            pass  # the server has ended

    def _list(self) -> None:
        """Read the list of runs as long as the server runs."""
        connection = http.client.HTTPConnection(self._address.netloc, timeout=_PATIENCE_S)
        try:
            while True:
                connection.request("GET", "/api/runs", headers={"cookie": self._cookie})
                connection.getresponse().read()
                time.sleep(LIST_S)
        except (OSError, http.client.HTTPException):
            pass

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def alone(measured: Bench) -> float:
    """Milliseconds of a step: the mean of all tasks."""
    with running(measured) as (_, out):
        return step_ms(measured, out)


def watched(measured: Bench) -> float:
    with shown(measured) as page, running(measured) as (run, out):
        page.show(run)
        return step_ms(measured, out)


def quiet(measured: Bench, tasks: int) -> tuple[float, float]:
    """CPU of the server in percent of a core, and its memory (RSS, MB), while three browsers show a quiet run."""
    run = measured.orch("up", "-d", "--wait", "ready", "--workers", str(tasks), "--", "sleep", "600")
    try:
        with shown(measured) as page:
            page.show(run)
            server = psutil.Process(page.process.pid)
            time.sleep(SETTLED_S)
            began, before = time.monotonic(), sum(server.cpu_times()[:2])
            time.sleep(QUIET_S)
            used = sum(server.cpu_times()[:2]) - before
            return 100 * used / (time.monotonic() - began), server.memory_info().rss / 1e6
    finally:
        measured.orch("down", "--force", run)


@contextmanager
def running(measured: Bench) -> Iterator[tuple[str, Path]]:
    out = measured.folder()
    words = ("up", "-d", "--workers", str(measured.given.workers), "--", sys.executable, "-c", TASK)
    run = measured.orch(*words, str(measured.given.steps), out)
    try:
        yield run, out
    finally:
        measured.orch("down", "--force", run)


@contextmanager
def shown(measured: Bench) -> Iterator[Page]:
    page = Page(measured.env)
    try:
        yield page
    finally:
        page.close()


def step_ms(measured: Bench, out: Path) -> float:
    (out / "go").touch()
    workers, times = measured.given.workers, []
    with waiting_at_most(_PATIENCE_S, "the tasks") as pause:
        while len(times) < workers:
            pause()
            times = [text for file in out.iterdir() if (text := file.read_text())]
    return 1000 * sum(map(float, times)) / workers / measured.given.steps


def main() -> None:
    with bench("page", __doc__, rounds=5, workers=2, many=1000, steps=400) as measured:
        given = measured.given
        step = measured.line("a step with the page open", "ms", RATIO_AIM, "the same run without")
        lines = {
            tasks: (
                measured.line(f"server's CPU, {tasks:,} quiet tasks, three browsers", "%", CPU_AIM_PERCENT),
                measured.line("its memory (RSS) then", "MB", MEMORY_AIM_MB),
            )
            for tasks in (given.workers, given.many)
        }
        for round_ in measured.rounds:
            pair(step, partial(watched, measured), partial(alone, measured), round_)
            for tasks, (cpu, memory) in lines.items():
                used, size = quiet(measured, tasks)
                cpu.orch.append(used)
                memory.orch.append(size)
                say(f"{tasks:,} quiet tasks: {used:.2f} % of a core, {size:.1f} MB")


if __name__ == "__main__":
    main()
