"""Create ended runs on disk, with logs, events, a result and, on request, checkpoints."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from making import event, exited, run_result, task_end
from run_records import make_run, one_task

from orchestrator.core.state import events
from orchestrator.store.runs.paths import RunPaths
from orchestrator.store.runs.writer import RunStore

DAY = 86_400.0
LOG_BYTES = 40_000


def ended_run(age_s: float = 0.0, checkpoint: bytes = b"", **made: Any) -> RunPaths:
    """Create a run that failed `age_s` ago, with a checkpoint of these bytes unless they are empty."""
    store = live_run(checkpoint, started_at=time.time() - age_s - 1, **made)
    mono = time.monotonic()
    store.append(exited(code=3, mono=mono))
    store.append(event(events.RunEndedEvent, mono, outcome="failed", exit_code=3))
    store.write_result(run_result("failed", task_end(0, "failed", 3), run_id=store.paths.run_id, exit_code=3))
    store.close()
    then = time.time() - age_s
    for path in (store.paths.events, store.paths.result):
        os.utime(path, (then, then))
    return store.paths


def live_run(checkpoint: bytes = b"", **made: Any) -> RunStore:
    """Create a run whose store is open. After close() without a result it is lost."""
    store = make_run(**{"directory": str(Path.cwd()), **made})
    for each in one_task(time.monotonic()):
        store.append(each)
    store.paths.task_log("worker:0").write_bytes(b"x" * LOG_BYTES)
    if checkpoint:
        (store.paths.checkpoints / "ckpt-1").write_bytes(checkpoint)
    return store


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} if directory.exists() else set()
