"""Create runs on disk without a supervisor. They are live while their store is open."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from making import event, planned_task

from orchestrator.core.state import events
from orchestrator.core.state.events import Event
from orchestrator.store.runs.locks import Lock
from orchestrator.store.runs.paths import RunPaths
from orchestrator.store.runs.reader import RunView
from orchestrator.store.runs.record import RunRecord, boot_id
from orchestrator.store.runs.writer import RunStore, new_run_id


def make_run(
    name: str = "job",
    directory: str = "/here",
    started_at: float | None = None,
    log_dir: Path | None = None,
    name_lock: Lock | None = None,
    boot: str | None = None,
    run_id: str | None = None,
    job: str | None = None,
) -> RunStore:
    """Create a live run. After close() of the store without a result it is lost."""
    store = RunStore.create(run_id or new_run_id(name), log_dir, name_lock)
    record = RunRecord(
        id=store.paths.run_id,
        name=name,
        directory=directory,
        started_at=time.time() if started_at is None else started_at,
        started_mono=time.monotonic() if started_at is None else started_at,
        boot_id=boot or boot_id(),
        supervisor_pid=os.getpid(),
        supervisor_start_ticks=0,
        checkpoint_dir=str(store.paths.checkpoints),
        versions={},
        spec={},
        job=job,
    )
    store.publish(record)
    return store


def view_of(paths: RunPaths) -> RunView:
    view = RunView.open(paths)
    assert view is not None
    return view


def one_task(mono: float) -> Iterable[Event]:
    """Return the events of a planned, started and running worker:0."""
    task = planned_task(log="/x", address=None, serves=False)
    yield event(events.AttemptPlanned, mono, at=0, attempt=1, tasks=(task,))
    yield event(events.TaskStarted, mono, at=0, task=0, pid=1, start_ticks=1)
    yield event(events.TaskReady, mono, at=0, task=0)
