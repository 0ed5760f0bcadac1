"""After a delay the supervisor handles exits before other inputs, and a failure to write a sample without another."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from waiting import child_with, until

from orchestrator import Cluster, Run
from orchestrator.core.state.events import TaskExited, parse_event
from orchestrator.store.logs.index import last_records, read_records

_PROGRAM = "import time\nfor n in range(2000): print(n)\nprint('up', flush=True)\nwhile True: time.sleep(0.1)"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_leaked_descriptors: None) -> Iterator[Run]:
    """A run whose tasks have written their output."""
    monkeypatch.chdir(tmp_path)
    with Cluster(workers=2, command=[sys.executable, "-I", "-S", "-c", _PROGRAM]) as run:
        run.wait_ready()
        until(lambda: all(run.log(f"worker:{index}").read_text().endswith("up\n") for index in (0, 1)))
        yield run


def _suspend(process: psutil.Process) -> None:
    process.suspend()
    until(lambda: process.status() == psutil.STATUS_STOPPED)


def test_exit_is_handled_before_log_events(run: Run) -> None:
    supervisor, agent = _processes_of(run)
    dies, cut, index = run.status().tasks[0].pid, run.log("worker:1"), run.dir / "logs" / "index"
    assert dies is not None
    until(lambda: index.exists() and _indexed(index) == cut.stat().st_size)
    until(lambda: _is_idle(supervisor))
    _suspend(supervisor)
    os.truncate(cut, 0)
    os.kill(dies, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{dies}").exists())  # the agent has reaped it
    until(lambda: all(agent.status() == psutil.STATUS_SLEEPING for _ in range(100)))  # and has reported it
    supervisor.resume()
    until(lambda: not run.view.is_live)
    events = [parse_event(line) for line in (run.dir / "events.jsonl").read_bytes().splitlines()[1:]]
    exited = next(event.at for event in events if isinstance(event, TaskExited))
    assert [exited < record.time for _, record in read_records(index) if record.is_truncation] == [True]


def test_removed_directory_is_noticed_at_the_first_sample(run: Run, tmp_path: Path) -> None:
    """Samples are written last."""
    supervisor, agent = _processes_of(run)
    _suspend(supervisor)
    elsewhere = run.dir.rename(tmp_path / "elsewhere")
    written = agent.io_counters().write_chars
    until(lambda: agent.io_counters().write_chars > written)
    _suspend(agent)
    supervisor.resume()
    until(lambda: b'"storage_failed"' in (elsewhere / "events.jsonl").read_bytes())
    agent.resume()


def _processes_of(run: Run) -> tuple[psutil.Process, psutil.Process]:
    supervisor = run.view.record.supervisor_pid
    return psutil.Process(supervisor), psutil.Process(child_with(supervisor, "worker.agent.agent"))


def _is_idle(process: psutil.Process) -> bool:
    """Whether the supervisor waits for inputs only. After a log has grown, a timer wakes it once more."""
    switches = process.num_ctx_switches()
    time.sleep(0.1)
    return process.status() == psutil.STATUS_SLEEPING and process.num_ctx_switches() == switches


def _indexed(index: Path) -> int:
    """The offset up to which the log of worker:1 is indexed; -1 if it is not."""
    records = last_records(index, index.stat().st_size, ["worker:1"])
    return records["worker:1"].end if records else -1
