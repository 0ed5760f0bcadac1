"""Documents of runs, as orch makes them from what a supervisor writes; with curves and lines of any number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from making import attempt_end, cause, exited
from pages import STARTED_AT, WrittenRun, view_of

from orchestrator.core.state import events
from orchestrator.core.state.events import Symptom, SymptomKind
from orchestrator.core.state.result import TaskStack
from orchestrator.store.runs.run_end import result_from_events

Document = dict[str, Any]

# Seconds that a run takes, and when its second attempt starts.
_LASTS_S = 120.0
_AGAIN_S = 56.0
_STARTUP = (
    "2026-11-23 09:00:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow binary is "
    "optimized to use available CPU instructions",
    "2026-11-23 09:00:00.223456: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.",
    "To enable the following instructions: AVX2 AVX512F FMA, in other operations, rebuild TensorFlow",
)
_EXCEPTION = """Traceback (most recent call last):
  File "train.py", line 41, in <module>
    main()
  File "train.py", line 33, in main
    model.fit(dataset, epochs=10)
  File "keras/src/utils/traceback_utils.py", line 122, in error_handler
    raise e.with_traceback(filtered_tb) from None
ValueError: Input 0 of layer "dense" is incompatible with the layer: expected axis -1 of input shape to have
value 784, but received input with shape (64, 64)
"""
_RAISED = Symptom(
    kind=SymptomKind.OWN,
    exception='ValueError: Input 0 of layer "dense" is incompatible with the layer',
    place="train.py:33",
    exception_file="exceptions/worker-1",
    lines=tuple(_EXCEPTION.splitlines()[-6:]),
)
_AT_FIT = TaskStack(
    how="signal", state="S", frames=("train.py:33 main", "keras/src/trainers/trainer.py:371 fit")
)


def task_names(count: int) -> list[str]:
    return [f"worker:{number}" for number in range(count)]


def run_document(
    tasks: int = 4, *, state: str = "succeeded", live: bool = False, points: int = 400
) -> Document:
    """Return the document of a run of `tasks` workers. A failed one restarts once, then worker:1 fails."""
    is_failed = state == "failed"
    with WrittenRun(tasks, "digits") as run:
        if is_failed:
            _attempt(run, 1, 0.0, _AGAIN_S - 2)
            _restart(run)
            _attempt(run, 2, _AGAIN_S, _LASTS_S)
        elif tasks:
            _attempt(run, 1, 0.0, _LASTS_S)
        if not live and state != "lost":
            _end(run, is_failed)
        document = run.page().document() if live else None
    document = document or run.page().document()
    document["series"] = series(run.tasks, points, 1 + is_failed)
    return document


def _attempt(run: WrittenRun, attempt: int, start: float, end: float) -> None:
    """Write an attempt of four epochs. worker:0 saves a checkpoint after each."""
    run.start(attempt, start, API_KEY="***", DATA_DIR="/data")
    epoch_s = (end - start - 12) / 4
    for number, task in enumerate(run.tasks):
        run.progress(start + 2 + number % 3, task, phase="importing")
        run.progress(start + 7, task, phase="waiting")
        values = {"phase": "training", "epochs": 10, "steps": 375, "step": 310 + number}
        for epoch in range(4):
            at = start + 9 + epoch * epoch_s
            loss, accuracy = 0.1312, {"accuracy": 0.9618}
            run.progress(at, task, **values, epoch=epoch + 1, loss=loss, metrics=accuracy)
            if number == 0:
                run.progress(at + epoch_s - 1, task, phase="saving", epoch=epoch + 1, epochs=10)
                saved = run.at(at + epoch_s - 0.4)
                run.append(events.CheckpointSaved(**saved, task=task, name=f"ckpt-{epoch + 1}", seconds=0.6))
        run.progress(end - 3, task, **values, epoch=4, loss=0.1312, metrics={"accuracy": 0.9618})
    usage = {task: {"cpu_percent": 88.0, "memory_bytes": 612 << 20} for task in run.tasks}
    run.store.write_sample(at=STARTED_AT + end - 1, mono=STARTED_AT + end - 1, tasks=usage, attempt=attempt)


def _restart(run: WrittenRun) -> None:
    """Kill worker:2 as a planned fault, and restart all."""
    at = run.at(_AGAIN_S - 2)
    text = "kill worker:2 at step 1210"
    fault = events.SignalRequested(**at, task="worker:2", signal=9, by="chaos", fault=0, text=text)
    ended = attempt_end(1, 137, cause=cause(2, "SIGKILL"), position=1210, resumed_at=1125, steps_lost=85)
    run.append(
        fault,
        exited(2, signal=9, mono=at["mono"]),
        events.RestartPlanned(**at, ended=ended, delay_s=2.0),
    )


def _end(run: WrittenRun, is_failed: bool) -> None:
    if is_failed:
        why = "stall_limit"
        stacks = events.StacksTaken(
            **run.at(_LASTS_S - 2), why=why, stacks=dict.fromkeys(run.tasks[:4], _AT_FIT)
        )
        run.append(stacks, exited(1, 1, mono=run.at(_LASTS_S - 1.2)["mono"], symptom=_RAISED, asked=False))
        run.store.paths.task_traceback("worker:1").parent.mkdir(exist_ok=True)
        run.store.paths.task_traceback("worker:1").write_text(_EXCEPTION)
    for order, task in enumerate(run.tasks):
        if not (is_failed and task == "worker:1"):
            run.exit(_LASTS_S, task, 143 if is_failed else 0, order=order + 1)
    run.end(_LASTS_S, "failed" if is_failed else "succeeded", int(is_failed))
    view = view_of(run.store.paths)
    view.refresh()
    result = result_from_events(view.record.id, view.state, view.record.directory)
    run.store.write_result(result.model_copy(update={"cause": cause(1)} if is_failed else {}))


def series(names: Sequence[str], points: int, attempts: int) -> Document:
    """Return series in which all workers have the same loss, as in synchronous training."""
    rows = range(points)
    falls = [math.exp(-4 * row / points) for row in rows]
    tasks: Document = {}
    for number, name in enumerate(names):
        tasks[name] = {
            "time": [round(9 + (_LASTS_S - 9) * row / points + number % 7 / 1000, 3) for row in rows],
            "attempt": [1 + (attempts * row // points) for row in rows],
            "step": [row * 8 for row in rows],
            "epoch": [1 + row * 8 // 375 for row in rows],
            "loss": [round(2.3 * fall + 0.08 + math.sin(row) * 0.03, 4) for row, fall in enumerate(falls)],
            "steps_per_s": [round(41 + math.sin(row + number), 2) for row in rows],
            "cpu_percent": [round(90 + 5 * math.sin(row * (number + 1)), 1) for row in rows],
            "memory_bytes": [int((610 - 190 * fall + number % 40) * 2**20) for fall in falls],
            "metrics": {"accuracy": [round(0.96 - 0.86 * fall, 4) for fall in falls]},
        }
    return {"metrics": ["accuracy"], "tasks": tasks}


def log_rows(names: Sequence[str], lines: int) -> Document:
    """Return `lines` rows in merged order: start-up lines, repeated lines, progress, warnings and a traceback."""
    first = names[:4]
    rows = [(1.5, task, text) for task, _ in enumerate(first) for text in _STARTUP]
    rows += [(9.0, task, "Epoch 1/10") for task, _ in enumerate(first)]
    tail = _EXCEPTION.splitlines()
    left = lines - len(rows) - len(tail)
    for number in range(left):
        text = "WARNING:absl:The optimizer skipped a step: the gradient was not finite."
        if number % 997 != 500:
            done, took = f"{number % 375:3d}/375 ━━━━━━━━━━━━━━━", f"{number % 60}s 24ms/step"
            text = f"{done} {took} - loss: 0.{number % 9973:04d}"
        rows.append((9.0 + (_LASTS_S - 11) * number / left, number % len(names), text))
    rows += [(_LASTS_S - 1.2, min(1, len(names) - 1), text) for text in tail[: max(0, lines - len(rows))]]
    times, tasks, texts = zip(*rows, strict=True)
    return {
        "names": list(names),
        "time": [int(time_s * 1000) for time_s in times],
        "task": list(tasks),
        "attempt": [1] * len(rows),
        "text": list(texts),
    }
