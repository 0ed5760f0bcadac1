"""The status of a run and its row in a list, from its reader: for `orch status`, `orch ls` and the page."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping

from orchestrator.client.view.messages import most_attempts
from orchestrator.client.view.status_document import (
    RunStatus,
    Status,
    host_statuses,
    queued_status,
    seconds_until,
    task_statuses,
)
from orchestrator.client.view.tables import RunRow
from orchestrator.core.errors import NewerFormat
from orchestrator.core.progress.activity import last_training
from orchestrator.store.runs.reader import RunView


def read_status(view: RunView) -> Status:
    """Return the status of a refreshed run."""
    state, sample = view.latest()
    now_mono = view.now_mono()
    tasks = task_statuses(state, sample, now_mono)
    return Status(run=run_status(view), tasks=tasks, hosts=host_statuses(state, now_mono))


def run_status(view: RunView) -> RunStatus:
    """Return the part of the status that concerns the run."""
    end = view.state.ended_mono if view.state.ended_mono is not None else view.now_mono()
    return RunStatus(
        id=view.record.id,
        name=view.record.name,
        state=view.state.phase,
        attempt=view.state.attempt,
        started_at=view.record.started_at,
        uptime_s=round(max(0.0, end - view.record.started_mono), 3),
        dir=str(view.paths.root),
        directory=view.record.directory,
        checkpoint_dir=view.record.checkpoint_dir,
        exit_code=view.state.exit_code,
        restart_in_s=seconds_until(view.state.restart_due_mono, view.now_mono()),
        most_attempts=most_attempts(view.record.spec, view.state.history),
        history=view.state.history,
        tensorboard=view.state.tensorboard,
        debugged=tuple(task.name for task in view.state.tasks.values() if task.is_debugged),
        queued=queued_status(view.state),
    )


def run_row(view: RunView, size_bytes: int = 0, *, is_fresh: bool = False) -> RunRow:
    """Return the row of a run, from its result if it has ended, else from its events.

    `size_bytes`: what it needs on disk. `is_fresh`: the caller has read the events already."""
    took: float | None
    exit_code: int | None
    try:
        result = None if view.is_live else view.result()
    except NewerFormat:
        result = None  # The events, which this version can read, hold the same facts.
    if result is not None and result.took_s is not None:
        state, tasks, took = str(result.outcome), len(result.tasks), result.took_s
        attempts, exit_code = result.attempts, result.exit_code
        training, bad_loss = result.training, result.bad_loss
    else:
        if not is_fresh:
            view.refresh()
        state, tasks, attempts = str(view.state.phase), len(view.state.tasks), view.state.attempt
        exit_code, training, bad_loss = view.state.exit_code, last_training(view.state), view.state.bad_loss
        end = view.now_mono() if view.state.ended_mono is None else view.state.ended_mono
        # The time at which a lost run ended is not known.
        took = None if state == "lost" else max(0.0, end - view.record.started_mono)
    loss = None if training is None else training.loss
    # Within this boot the monotonic clock is used: the wall clock may have been set since.
    since_mono = time.monotonic() - view.record.started_mono if view.is_same_boot else None
    age = max(0.0, time.time() - view.record.started_at if since_mono is None else since_mono)
    return RunRow(
        id=view.record.id,
        name=view.record.name,
        state=state,
        tasks=tasks,
        attempts=attempts,
        age_s=round(age, 3),
        took_s=None if took is None else round(took, 3),
        size_bytes=size_bytes,
        directory=view.record.directory,
        command=command_text(view.record.spec),
        exit_code=exit_code,
        loss=loss,
        bad_loss=bad_loss.value if bad_loss is not None and loss is None else None,
    )


def command_text(spec: Mapping[str, object]) -> str:
    """Return the command as the user gave it, by the spec in a run's record; empty if the record does not hold it."""
    command = spec.get("command")
    words = command.get("words") if isinstance(command, Mapping) else None
    if not isinstance(command, Mapping) or not isinstance(words, list):
        return ""
    text = shlex.join(str(word) for word in words)
    return f"example {text}".rstrip() if command.get("kind") == "example" else text
