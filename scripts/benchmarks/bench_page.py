"""Measures what the page costs a run: its steps with `orch ui` and three readers, beside the same run without.

    scripts/bench page [--rounds 5] [--workers 2] [--many 1000] [--steps 400] [--json FILE]

A step is computed in Python and prints a line, as Keras does. The readers take what a browser gets of a run: the
document, the last lines, the feed, and every two seconds the list of runs. The server is measured while it shows two
quiet runs, one of them of many tasks.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException

import psutil
from bench_pairs import ORCH, Bench, bench, say
from page_client import PageBrowser

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


@contextmanager
def page(measured: Bench, run: str) -> Iterator[psutil.Process]:
    """The process of an `orch ui`, once all readers have the whole run."""
    argv = [ORCH, "ui", "--port", "0", "--json"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=quiet, env=measured.env) as server:
        assert server.stdout is not None
        opened = threading.Barrier(READERS + 1, timeout=_PATIENCE_S)
        try:
            browser = PageBrowser(json.loads(server.stdout.read1())["address"])
            for _ in range(READERS):
                threading.Thread(target=follow, args=(browser, run, opened), daemon=True).start()
                threading.Thread(target=list_runs, args=(browser,), daemon=True).start()
            opened.wait()
            yield psutil.Process(server.pid)
        finally:
            server.terminate()


def follow(browser: PageBrowser, run: str, opened: threading.Barrier) -> None:
    """Read what the page of a run gets, until the server ends."""
    with suppress(OSError, HTTPException):
        events = browser.events(run)
        next(events)
        opened.wait()
        for _ in events:
            pass


def list_runs(browser: PageBrowser) -> None:
    """Read the list of runs over one connection, as long as the server runs."""
    connection = HTTPConnection("127.0.0.1", browser.port, timeout=_PATIENCE_S)
    with suppress(OSError, HTTPException):
        while True:
            connection.request("GET", "/api/runs", headers={"cookie": browser.cookie})
            connection.getresponse().read()
            time.sleep(LIST_S)


def step_ms(measured: Bench, is_shown: bool) -> float:
    """Milliseconds of a step: the mean of all tasks."""
    workers, steps, out = measured.given.workers, measured.given.steps, measured.folder()
    with measured.running(workers, sys.executable, "-c", TASK, str(steps), str(out)) as run:
        with page(measured, run) if is_shown else nullcontext():
            (out / "go").touch()
            measured.orch("wait", run)
        times = [float(file.read_text()) for file in out.glob("worker:*")]
    return 1000 * sum(times) / workers / steps


def main() -> None:
    with bench("page", __doc__, rounds=5, workers=2, many=1000, steps=400) as measured:
        step = measured.line("a step with the page open", "ms", RATIO_AIM, "the same run without")
        measured.compare(step, partial(step_ms, measured, True), partial(step_ms, measured, False))
        for tasks in (measured.given.workers, measured.given.many):
            name = f"server's CPU, {tasks:,} quiet tasks, three browsers"
            cpu = measured.line(name, "%", CPU_AIM_PERCENT)
            memory = measured.line("its memory (RSS) then", "MB", MEMORY_AIM_MB)
            for _ in measured.rounds:
                with measured.running(tasks, "sleep", "600") as run, page(measured, run) as server:
                    time.sleep(SETTLED_S)
                    cpu.orch.append(server.cpu_percent(QUIET_S))
                    memory.orch.append(server.memory_info().rss / 1e6)
                say(f"{name}: {cpu.orch[-1]} %, {memory.orch[-1]:.1f} MB")


if __name__ == "__main__":
    main()
