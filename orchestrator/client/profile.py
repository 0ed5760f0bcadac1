"""The table of `--profile`: the time of each task by what it did, and the tasks that it waited for."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.core.job.profiled_steps import ProfiledSteps
from orchestrator.core.text.clean import safe
from orchestrator.host.isolation import isolated

_PROGRAM = "worker.programs.summarize_profile"
_PATIENCE_S = 120.0
# Shares of a step that are not worth a name.
_LEAST_SHARE = 0.01
_COLUMNS = ("step", "input", "compute", "collective", "other")


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class TaskProfile(_Document):
    """The seconds of a task between the beginning of step `first` and the end of step `last`."""

    first: int
    last: int
    total: float
    input: float
    compute: float
    collective: float
    other: float

    @property
    def steps(self) -> int:
        return max(1, self.last - self.first + 1)


class ProfileSummary(_Document):
    """The output of worker/programs/summarize_profile.py."""

    tasks: dict[str, TaskProfile] = {}
    waits: dict[str, dict[str, float]] = {}
    problems: tuple[str, ...] = ()


def profile_lines(directory: Path, asked: ProfiledSteps) -> list[str]:
    """The lines about the last attempt with a profile in the run's directory for it."""
    attempts = sorted(
        (directory / "plugins/profile").glob("attempt-*"), key=lambda path: path.stat().st_mtime
    )
    if not attempts:
        return [
            f"--profile {asked}: no task has recorded these steps: the training had fewer, or its loop reports no"
            " steps (docs/profile.md)"
        ]
    try:
        summary = _summary(attempts[-1])
    except (OSError, subprocess.SubprocessError, ValidationError, json.JSONDecodeError) as error:
        return [f"--profile: the recordings in {attempts[-1]} cannot be read: {safe(str(error))}"]
    return [
        *_table(summary, asked),
        *map(safe, summary.problems),
        f"TensorBoard: tensorboard --logdir {directory}",
    ]


def _summary(attempt: Path) -> ProfileSummary:
    done = subprocess.run(
        isolated(_PROGRAM, str(attempt)), capture_output=True, timeout=_PATIENCE_S, check=True
    )
    return ProfileSummary.model_validate_json(done.stdout)


def _table(summary: ProfileSummary, asked: ProfiledSteps) -> Iterator[str]:
    width = max([4, *map(len, summary.tasks)])
    yield f"profile of the steps {asked}, in ms a step"
    yield f"{'task':<{width}}" + "".join(f"{name:>12}" for name in _COLUMNS) + "   waited for"
    for task, its in summary.tasks.items():
        seconds = (its.total, its.input, its.compute, its.collective, its.other)
        row = "".join(f"{each * 1000 / its.steps:>12.1f}" for each in seconds)
        waits = sorted(summary.waits.get(task, {}).items(), key=lambda pair: -pair[1])
        named = [
            f"{other} {waited * 1000 / its.steps:.1f}"
            for other, waited in waits
            if waited >= its.total * _LEAST_SHARE
        ]
        other_steps = "" if str(asked) == f"{its.first}-{its.last}" else f" (steps {its.first}-{its.last})"
        yield safe(f"{task:<{width}}{row}   {', '.join(named) or '-'}{other_steps}")
