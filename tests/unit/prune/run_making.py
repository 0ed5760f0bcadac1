"""Create ended runs on disk, with logs, events, a result and, on request, checkpoints."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from run_records import make_run, one_task

from orchestrator.core.state import events
from orchestrator.core.state.result import RunResult, TaskEnd
from orchestrator.store.runs.paths import RunPaths
from orchestrator.store.runs.writer import RunStore

DAY = 86_400.0
LOG_BYTES = 40_000


def ended_run(age_s: float = 0.0, checkpoint: bytes = b"", outcome: str = "failed", **made: Any) -> RunPaths:
    """Create a run that ended `age_s` ago, with a checkpoint of these bytes unless they are empty."""
    store = live_run(checkpoint, started_at=time.time() - age_s - 1, **made)
    result = RunResult(
        run_id=store.paths.run_id,
        outcome=outcome,  # type: ignore[arg-type]
        exit_code=0 if outcome == "succeeded" else 3,
        attempts=1,
        cause=None,
        first_failure=None,
        detection_s=None,
        teardown_s=0.1,
        tasks=(TaskEnd(task="worker:0", state="failed", exit_code=3, signal=None, end="failed"),),
    )
    mono = time.monotonic()
    store.append(events.TaskExited(at=1, mono=mono, task="worker:0", exit_code=3, signal=None, order=0))
    store.append(events.RunEndedEvent(at=1, mono=mono, outcome=outcome, exit_code=3))
    store.write_result(result)
    store.close()
    then = time.time() - age_s
    for path in (store.paths.events, store.paths.result):
        os.utime(path, (then, then))
    return store.paths


def live_run(checkpoint: bytes = b"", **made: Any) -> RunStore:
    """Create a run whose store is open. After close() without a result it is lost."""
    store = make_run(**{"directory": str(Path.cwd()), **made})
    for event in one_task(time.monotonic()):
        store.append(event)
    store.paths.task_log("worker:0").write_bytes(b"x" * LOG_BYTES)
    if checkpoint:
        (store.paths.checkpoints / "ckpt-1").write_bytes(checkpoint)
    return store


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} if directory.exists() else set()
