"""Processes that write at full speed lose no byte, mix no lines and do not wait."""

from __future__ import annotations

import os
import re
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
    out_fd = os.open(shown, os.O_WRONLY | os.O_CREAT)
    view = PlainView(Output(out_fd), Output(2), LineStyle())
    writers = []
    try:
        with LogStore(Directory.at(logs)) as store, LogReader(logs) as reader:
            for task in TASKS:
                store.add(task, 1, log_name(task))
                fd = os.open(logs / log_name(task), os.O_WRONLY | os.O_APPEND)
                writers.append(subprocess.Popen([sys.executable, "-c", WRITER, task], stdout=fd))
                os.close(fd)
            _index_and_show(store, reader, view, writers)
            for task in TASKS:
                store.finish(task, time.monotonic())
            while chunks := reader.read():
                view.show(chunks)
            view.finish()
            assert reader.read_unindexed() == []
        assert [writer.wait() for writer in writers] == [0, 0, 0, 0]
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
        os.close(out_fd)
    lines = shown.read_text().splitlines()
    assert len(lines) == LINES * len(TASKS)
    for task in TASKS:
        mine = [line for line in lines if line.startswith(f"{task} | ")]
        assert mine == [f"{task} | {task} line {n} of a flood" for n in range(LINES)]
        raw = (logs / log_name(task)).read_text()
        assert raw == "".join(f"{task} line {n} of a flood\n" for n in range(LINES))
    assert all(re.match(r"worker:\d \| worker:\d line ", line) for line in lines)


def _index_and_show(
    store: LogStore, reader: LogReader, view: PlainView, writers: list[subprocess.Popen[bytes]]
) -> None:
    """Index and read the logs in one loop until all writers have exited."""
    poller = select.poll()
    if store.fileno() >= 0:
        poller.register(store.fileno(), select.POLLIN)
    wait: float | None = 0.0
    while any(writer.poll() is None for writer in writers):
        poller.poll(20 if wait is None else min(20, wait * 1000))
        wait = store.poll(time.monotonic())
        view.show(reader.read())
