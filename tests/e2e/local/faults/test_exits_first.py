"""After a delay the supervisor handles exits before other inputs, and loses none of them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
from faulty_runs import SLEEP, WRITES, agent_of, cluster, supervisor_of, task_pids, up
from waiting import until

from orchestrator.core.state.events import LogTruncated, TaskExited, parse_event
from orchestrator.store.logs.index import last_records


def test_exit_is_handled_before_log_events() -> None:
    with cluster(WRITES, SLEEP) as run:
        up()
        dies, _ = task_pids(run)
        cut = run.log("worker:1")
        until(lambda: _indexed(run.dir / "logs" / "index", "worker:1") == cut.stat().st_size)
        agent = psutil.Process(agent_of(run))
        supervisor = psutil.Process(supervisor_of(run))
        until(lambda: _is_idle(supervisor))
        supervisor.suspend()
        until(lambda: supervisor.status() == psutil.STATUS_STOPPED)
        os.truncate(cut, 0)
        os.kill(dies, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{dies}").exists())  # the agent has reaped it
        until(
            lambda: all(agent.status() == psutil.STATUS_SLEEPING for _ in range(100))
        )  # and has reported it
        supervisor.resume()
        until(lambda: not run.view.is_live)
        recorded = [parse_event(line) for line in (run.dir / "events.jsonl").read_bytes().splitlines()[1:]]
    kinds = [type(event) for event in recorded if isinstance(event, TaskExited | LogTruncated)]
    assert kinds[0] is TaskExited and LogTruncated in kinds


def test_removed_directory_is_noticed_at_the_first_sample(tmp_path: Path) -> None:
    """Samples are written last. A failure to write one must be handled without another input."""
    elsewhere = tmp_path / "elsewhere"
    with cluster(SLEEP) as run:
        agent = psutil.Process(agent_of(run))
        task_pids(run)
        supervisor = psutil.Process(supervisor_of(run))
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
    """Whether it waits for inputs alone. After a log has grown, it also wakes once more by the clock."""
    switches, looked = process.num_ctx_switches(), time.monotonic()
    until(lambda: time.monotonic() > looked + 0.1)
    return process.status() == psutil.STATUS_SLEEPING and process.num_ctx_switches() == switches


def _indexed(index: Path, task: str) -> int:
    """The offset up to which the task's log is indexed; -1 if it is not."""
    records = last_records(index, index.stat().st_size, [task]) if index.exists() else {}
    return records[task].end if task in records else -1
