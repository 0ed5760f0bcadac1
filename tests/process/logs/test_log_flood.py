"""Processes that write at full speed lose no byte, mix no lines and do not wait."""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
import time
from pathlib import Path

from orchestrator.client.view.log_line import LineStyle
from orchestrator.client.view.output import Output
from orchestrator.client.view.plain import PlainView
from orchestrator.store.directory import Directory
from orchestrator.store.logs.index import log_name
from orchestrator.store.logs.merge import LogReader
from orchestrator.store.logs.writer import LogStore

LINES = 20_000
WRITER = f"""
import os, sys
task = sys.argv[1].encode()
for first in range(0, {LINES}, 50):
    os.write(1, b"".join(b"%s line %d of a flood\\n" % (task, n) for n in range(first, first + 50)))
"""
TASKS = [f"worker:{number}" for number in range(4)]


def test_logs_of_four_flooding_tasks_are_complete(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    shown = tmp_path / "shown"
    writers = []
    with (
        shown.open("wb") as out,
        LogStore(Directory.at(logs)) as store,
        LogReader(logs) as reader,
        contextlib.ExitStack() as stack,
    ):
        view = PlainView(Output(out.fileno()), Output(2), LineStyle())
        for task in TASKS:
            store.add(task, 1, log_name(task))
            with (logs / log_name(task)).open("ab") as log:
                writers.append(subprocess.Popen([sys.executable, "-c", WRITER, task], stdout=log))
            stack.enter_context(writers[-1])
            stack.callback(writers[-1].kill)
        # Index and read the logs in one loop.
        poller = select.poll()
        if store.fileno() >= 0:
            poller.register(store.fileno(), select.POLLIN)
        wait: float | None = 0.0
        while any(writer.poll() is None for writer in writers):
            poller.poll(20 if wait is None else min(20, wait * 1000))
            wait = store.poll(time.monotonic())
            view.show(reader.read())
        for task in TASKS:
            store.finish(task, time.monotonic())
        while chunks := reader.read():
            view.show(chunks)
        view.finish()
        assert reader.read_unindexed() == []
        assert [writer.wait() for writer in writers] == [0, 0, 0, 0]
    lines = shown.read_text().splitlines()
    assert len(lines) == LINES * len(TASKS)
    for task in TASKS:
        written = [f"{task} line {n} of a flood" for n in range(LINES)]
        assert [line for line in lines if line.startswith(f"{task} | ")] == [
            f"{task} | {line}" for line in written
        ]
        assert (logs / log_name(task)).read_text().splitlines() == written
