"""Documents of runs, as the page draws them: without running anything, and of any size."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

Document = dict[str, Any]

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


def task_names(count: int) -> list[str]:
    return [f"worker:{number}" for number in range(count)]


def run_document(
    tasks: int = 4,
    *,
    name: str = "digits",
    state: str = "succeeded",
    live: bool = False,
    points: int = 400,
    seconds: float = 120.0,
    seed: int = 1,
) -> Document:
    """Return the document of a run of `tasks` workers. A failed one restarts once, then worker:1 fails."""
    names = task_names(tasks)
    run_id = f"{name}-20261123-090000-{seed:04x}"
    is_failed = state == "failed"
    attempt = 2 if is_failed else 1
    return {
        "schema_version": 1,
        "orch": "0.1.0",
        "made_at": 1_795_424_521.0,
        "run": {
            "id": run_id,
            "name": name,
            "state": state,
            "live": live,
            "attempt": attempt,
            "attempts": attempt,
            "most_attempts": 4 if is_failed else None,
            "started_at": 1_795_424_400.0,
            "uptime_s": seconds,
            "took_s": None if live else seconds,
            "exit_code": None if live else int(is_failed),
            "dir": f"/home/me/.local/state/orch/runs/{run_id}",
            "directory": "/home/me/digits",
            "checkpoint_dir": f"/home/me/.local/state/orch/runs/{run_id}/checkpoints",
            "command": "python train.py --batch-size 64",
            "remarks": [],
            "restart_in_s": None,
            "tensorboard": None,
        },
        "end": None if live else _end(names, state),
        "stacks": _stacks(names) if is_failed else [],
        "plan": _plan(names),
        "tasks": [_task(number, name, state, live, seconds) for number, name in enumerate(names)],
        "hosts": [],
        "timeline": timeline(names, seconds, is_failed=is_failed, live=live),
        "series": series(names, points, seconds, seed, attempts=attempt),
    }


def _task(number: int, name: str, state: str, live: bool, seconds: float) -> Document:
    ended = {"failed": "failed" if number == 1 else "stopped"}.get(state, "succeeded")
    progress = {
        "phase": "training",
        "epoch": 8,
        "epochs": 10,
        "step": 310 + number,
        "steps": 375,
        "loss": 0.1312,
    }
    return {
        "task": name,
        "role": "worker",
        "index": number,
        "pid": 41_200 + number,
        "state": "running" if live else ended,
        "address": f"127.0.0.1:{30_000 + number}",
        "uptime_s": seconds - 9.5,
        "cpu_percent": 88.0 + number % 7 if live else None,
        "memory_bytes": (612 + number % 40) << 20,
        "restarts": 0,
        "exit_code": None if live else (1 if ended == "failed" else 143 if ended == "stopped" else 0),
        "signal": None,
        "progress": {
            **progress,
            "metrics": {"accuracy": 0.9618},
            "steps_per_s": 41.7 + number % 5,
            "examples_per_s": 2_670.0,
        },
        "doing": "training" if live else "",
        "waiting_for": [],
        "log": f"logs/worker-{number}.log",
        "restart_in_s": None,
        "paused": False,
        "stop_signal": None,
        "host": None,
        "host_state": None,
        "colour": number % 10,
    }


def _end(names: Sequence[str], state: str) -> Document:
    failed = state == "failed"
    line = 'worker:1: ValueError: Input 0 of layer "dense" is incompatible with the layer (train.py:33)'
    return {
        "outcome": state,
        "headline": "worker:1 failed: exit 1" if failed else f"all {len(names)} tasks succeeded",
        "cause": {"task": "worker:1", "kind": "exited", "text": "exit 1", "line": line} if failed else None,
        "advice": "The batches have another shape than the model's input: look at the dataset."
        if failed
        else None,
        "first_failure": {
            "task": "worker:1",
            "exit_code": 1,
            "signal": None,
            "exception": 'ValueError: Input 0 of layer "dense" is incompatible with the layer',
            "log": "logs/worker-1.log",
            "advice": None,
            "lines": _EXCEPTION.splitlines()[-6:],
            "exception_file": "exceptions/worker-1",
            "place": "train.py:33",
        }
        if failed
        else None,
        "lines": ["worker:1 failed: exit 1", "  full traceback  logs/worker-1.log"] if failed else [],
        "exception": _EXCEPTION if failed else None,
        "history": [
            {
                "attempt": 1,
                "cause": {"task": "worker:2", "kind": "exited", "text": "SIGKILL, likely out of memory"},
                "exit_code": 137,
                "position": 1_210,
                "resumed_at": 1_125,
                "steps_lost": 85,
                "recovery_s": 6.4,
            }
        ]
        if failed
        else [],
        "faults": [],
        "tasks": [
            {"task": name, "state": state, "exit_code": int(failed), "signal": None, "end": "stopped by orch"}
            for name in names
        ],
        "training": {"epoch": 8, "epochs": 10, "step": 310, "loss": 0.1312, "metrics": {"accuracy": 0.9618}},
        "not_distributed": None,
        "bad_loss": None,
    }


def _stacks(names: Sequence[str]) -> list[Document]:
    text = 'File "train.py", line 33, in main\nFile "keras/src/trainers/trainer.py", line 371, in fit\n'
    shown = {name: {"how": "signal", "state": "S", "note": None, "text": text} for name in names[:4]}
    return [{"time": 88.4, "why": "worker:1 has not reported a step for 30 s", "tasks": shown}]


def _plan(names: Sequence[str]) -> Document:
    cluster = {"worker": [f"127.0.0.1:{30_000 + number}" for number in range(min(32, len(names)))]}
    return {
        "command": "python train.py --batch-size 64",
        "python": "/home/me/venv/bin/python",
        "versions": {"orch": "0.1.0", "python": "3.12.4", "tensorflow": "2.21.0", "keras": "3.12.0"},
        "strategy": "multi-worker",
        "options": {"workers": str(len(names)), "max-restarts": "3", "env": "API_KEY=***"},
        "env_names": ["API_KEY", "DATA_DIR"],
        "cluster": cluster,
        "tf_config": {
            name: {"cluster": cluster, "task": {"type": "worker", "index": number}}
            for number, name in enumerate(names[:32])
        },
        "devices": dict.fromkeys(names[:32], "CPU, 1 core"),
        "tasks": [
            {
                "task": name,
                "argv": ["python", "train.py", "--batch-size", "64"],
                "cwd": "/home/me/digits",
                "host": None,
            }
            for name in names[:32]
        ],
    }


def timeline(
    names: Sequence[str], seconds: float, *, is_failed: bool = False, live: bool = False
) -> Document:
    """Return spans and marks; a failed run has two attempts."""
    half = seconds * 0.45 if is_failed else seconds
    spans: list[Document] = []
    marks: list[Document] = [_mark(None, 0.0, "attempt", "attempt 1")]
    for number, name in enumerate(names):
        for attempt, start, end in ((1, 0.0, half), (2, half + 2, seconds))[: 2 if is_failed else 1]:
            at = start + 0.2
            steps = [
                ("starting", 0.6, ""),
                ("importing", 5.0 + number % 3, ""),
                ("waiting", 1.5, "waiting for worker:2"),
            ]
            for state, long, text in steps:
                spans.append(_span(name, attempt, state, at, at + long, text))
                at += long
            marks.append(_mark(name, at, "ready", "ready"))
            wide = (end - at - 3) / 4
            for epoch in range(4):
                spans.append(
                    _span(name, attempt, "training", at, at + wide, f"epoch {epoch + 1 + 4 * (attempt - 1)}")
                )
                at += wide
                if number == 0:
                    spans.append(_span(name, attempt, "saving", at, at + 0.6, "checkpoint"))
                    marks.append(_mark(name, at + 0.6, "checkpoint", f"checkpoint {epoch + 1}"))
                at += 0.6
            if live:
                spans[-1]["end"] = None
    if is_failed:
        marks += [
            _mark("worker:2", half - 1, "fault", "kill worker:2 at step 1210"),
            _mark("worker:2", half - 0.9, "signal", "SIGKILL"),
            _mark(None, half, "restart", "attempt 2 after SIGKILL of worker:2"),
            _mark(None, half + 2, "attempt", "attempt 2"),
            _mark("worker:1", seconds - 1.2, "failure", "exit 1: ValueError"),
            _mark(None, seconds - 1.1, "teardown", "stopping 3 tasks"),
        ]
    if not live:
        marks.append(_mark(None, seconds, "end", "failed" if is_failed else "succeeded"))
    return {
        "attempts": [{"attempt": 1, "start": 0.0, "end": half if is_failed else None}],
        "spans": spans,
        "marks": marks,
    }


def _span(task: str, attempt: int, state: str, start: float, end: float, text: str) -> Document:
    return {"task": task, "attempt": attempt, "state": state, "start": start, "end": end, "text": text}


def _mark(task: str | None, time: float, kind: str, text: str) -> Document:
    return {"task": task, "time": round(time, 3), "kind": kind, "text": text}


def series(names: Sequence[str], points: int, seconds: float, seed: int, *, attempts: int = 1) -> Document:
    """Return series in which all workers have the same loss, as in synchronous training."""
    noise = random.Random(seed)
    shared = [noise.gauss(0, 0.03) for _ in range(points)]
    tasks: Document = {}
    for number, name in enumerate(names):
        own = random.Random(seed * 1_000 + number)
        rows = range(points)
        time = [round(9 + (seconds - 9) * row / points + own.random() * 0.02, 3) for row in rows]
        loss = [
            2.3 * math.exp(-4 * row / points) + 0.08 + shared[row] * math.exp(-2 * row / points)
            for row in rows
        ]
        tasks[name] = {
            "time": time,
            "attempt": [1 + (attempts * row // points) for row in rows],
            "step": [row * 8 for row in rows],
            "epoch": [1 + row * 8 // 375 for row in rows],
            "loss": [round(value, 4) for value in loss],
            "steps_per_s": [round(41 + own.gauss(0, 1.5), 2) for _ in rows],
            "cpu_percent": [round(90 + own.gauss(0, 5), 1) for _ in rows],
            "memory_bytes": [
                int((420 + 190 * (1 - math.exp(-row / 40)) + number % 40) * 2**20) for row in rows
            ],
            "metrics": {
                "accuracy": [round(0.1 + 0.86 * (1 - math.exp(-3 * row / points)), 4) for row in rows]
            },
        }
    return {"metrics": ["accuracy"], "tasks": tasks}


def log_rows(names: Sequence[str], lines: int, seconds: float = 120.0) -> Document:
    """Return `lines` rows in merged order: start-up lines, repeated lines, progress, warnings and a traceback."""
    rows: Document = {"names": list(names), "time": [], "task": [], "attempt": [], "text": []}

    def add(time_s: float, task: int, text: str) -> None:
        for column, value in (("time", int(time_s * 1000)), ("task", task), ("attempt", 1), ("text", text)):
            rows[column].append(value)

    for task in range(min(4, len(names))):
        for text in _STARTUP:
            add(1.5, task, text)
    for task in range(min(4, len(names))):
        add(9.0, task, "Epoch 1/10")
    tail = _EXCEPTION.splitlines()
    left = lines - len(rows["text"]) - len(tail)
    for number in range(left):
        time_s = 9.0 + (seconds - 11) * number / max(1, left)
        task = number % len(names)
        if number % 997 == 500:
            add(time_s, task, "WARNING:absl:The optimizer skipped a step: the gradient was not finite.")
        else:
            step = f"{number % 375:3d}/375"
            add(
                time_s,
                task,
                f"{step} ━━━━━━━━━━━━━━━ {number % 60}s 24ms/step - loss: 0.{number % 9973:04d}",
            )
    for text in tail[: max(0, lines - len(rows["text"]))]:
        add(seconds - 1.2, min(1, len(names) - 1), text)
    return rows


def comparison(documents: Sequence[Document]) -> Document:
    """Return the comparison of several runs."""
    return {
        "runs": [
            {key: document["run"][key] for key in ("id", "name", "state", "command", "took_s")}
            for document in documents
        ],
        "differences": [
            {
                "kind": "option",
                "name": "workers",
                "values": [str(len(document["tasks"])) for document in documents],
            },
            {"kind": "version", "name": "keras", "values": [f"3.{at}.0" for at, _ in enumerate(documents)]},
        ],
        "final": [
            {"name": "loss", "values": [0.1312 + at / 50 for at, _ in enumerate(documents)]},
            {"name": "accuracy", "values": [0.9618 - at / 50 for at, _ in enumerate(documents)]},
        ],
        "series": {
            "metrics": ["accuracy"],
            "tasks": {
                document["run"]["id"]: document["series"]["tasks"]["worker:0"] for document in documents
            },
        },
    }
