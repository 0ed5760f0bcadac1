"""The report of a long run is small enough to mail."""

from __future__ import annotations

import math
import random

import pytest
from pages import STARTED_AT, WrittenRun, embedded

from orchestrator.client.page.report import report_html
from orchestrator.core.state.events import Progress
from orchestrator.store.runs.history_file import HistoryFile

LINES_A_STEP = 20


@pytest.mark.parametrize("steps", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_report_of_8_tasks_is_under_500_bytes_a_step(steps: int) -> None:
    """5 MB for 10,000 steps and 200,000 lines."""
    chance = random.Random(1)
    with WrittenRun(8) as run:
        run.start()
        history = HistoryFile(run.store.directory, run.store.paths.samples.name)
        for step in range(steps):
            loss = 2 * math.exp(-step / 3000) + 0.1 * chance.random()
            usage = {task: {"cpu_percent": 100 * chance.random(), "memory_bytes": step} for task in run.tasks}
            progress = {
                task: Progress(
                    phase="training",
                    epoch=1 + step // 1000,
                    step=step % 1000,
                    steps=1000,
                    loss=loss + 0.01 * chance.random(),
                    metrics={"accuracy": chance.random()},
                    steps_per_s=100 * chance.random(),
                )
                for task in run.tasks
            }
            history.add(2.0 + step, 1, progress, usage)
            lines = [
                b"step %d - loss: %.4f - %.2f ms" % (step, loss, chance.random()) for _ in range(LINES_A_STEP)
            ]
            run.log(STARTED_AT + 2 + step, run.tasks[step % 8], b"\n".join(lines) + b"\n")
        history.close()
        run.end(steps + 3.0)
        report = report_html([run.page()])
    data = embedded(report)
    assert len(data["log-0"]["text"]) == steps * LINES_A_STEP
    for columns in data["runs"][0]["series"]["tasks"].values():
        assert len(columns["loss"]) >= 1000 and columns["time"][-1] > steps - 10
    assert len(report) < 500 * steps
