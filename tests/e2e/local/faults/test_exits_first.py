"""After a delay the supervisor handles exits before other inputs, and loses none of them."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from waiting import child_with, until

from orchestrator import Cluster, Run
from orchestrator.core.state.events import TaskExited, parse_event
from orchestrator.store.logs.index import last_records, read_records

_PROGRAM = "import time\nfor n in range(2000): print(n)\nprint('up', flush=True)\nwhile True: time.sleep(0.1)"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_leaked_descriptors: None) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def cluster() -> Cluster:
    return Cluster(workers=2, command=[sys.executable, "-I", "-S", "-c", _PROGRAM])


def processes_of(run: Run) -> tuple[psutil.Process, psutil.Process]:
    """The supervisor and the agent, once all tasks have written their output."""
    until(lambda: all(run.log(f"worker:{index}").read_text().endswith("up\n") for index in (0, 1)))
    supervisor = run.view.record.supervisor_pid
    return psutil.Process(supervisor), psutil.Process(child_with(supervisor, "worker.agent.agent"))


def test_exit_is_handled_before_log_events() -> None:
    with cluster() as run:
        run.wait_ready()
        supervisor, agent = processes_of(run)
        dies = run.status().tasks[0].pid
        assert dies is not None
        cut = run.log("worker:1")
        until(lambda: _indexed(run.dir / "logs" / "index", "worker:1") == cut.stat().st_size)
        until(lambda: _is_idle(supervisor))
        supervisor.suspend()
        until(lambda: supervisor.status() == psutil.STATUS_STOPPED)
        os.truncate(cut, 0)
        os.kill(dies, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{dies}").exists())  # the agent has reaped it
        # And has reported it.
        until(lambda: all(agent.status() == psutil.STATUS_SLEEPING for _ in range(100)))
        supervisor.resume()
        until(lambda: not run.view.is_live)
        recorded = [parse_event(line) for line in (run.dir / "events.jsonl").read_bytes().splitlines()[1:]]
        index = [record for _, record in read_records(run.dir / "logs" / "index")]
    exited = next(event.at for event in recorded if isinstance(event, TaskExited))
    assert [exited < record.time for record in index if record.is_truncation] == [True]


def test_removed_directory_is_noticed_at_the_first_sample(tmp_path: Path) -> None:
    """Samples are written last. A failure to write one must be handled without another input."""
    elsewhere = tmp_path / "elsewhere"
    with cluster() as run:
        run.wait_ready()
        supervisor, agent = processes_of(run)
        supervisor.suspend()
        until(lambda: supervisor.status() == psutil.STATUS_STOPPED)
        run.dir.rename(elsewhere)
        written = agent.io_counters().write_chars
        until(lambda: agent.io_counters().write_chars > written)
        agent.suspend()
        until(lambda: agent.status() == psutil.STATUS_STOPPED)
        supervisor.resume()
        events = elsewhere / "events.jsonl"
        until(lambda: b'"storage_failed"' in events.read_bytes())
        agent.resume()


def _is_idle(process: psutil.Process) -> bool:
    """Whether the supervisor waits for inputs only. After a log has grown, a timer wakes it once more."""
    switches, looked = process.num_ctx_switches(), time.monotonic()
    until(lambda: time.monotonic() > looked + 0.1)
    return process.status() == psutil.STATUS_SLEEPING and process.num_ctx_switches() == switches


def _indexed(index: Path, task: str) -> int:
    """The offset up to which the task's log is indexed; -1 if it is not."""
    records = last_records(index, index.stat().st_size, [task]) if index.exists() else {}
    return records[task].end if task in records else -1
