"""The report of a long run is small enough to mail."""

from __future__ import annotations

import math
import random

from pages import STARTED_AT, WrittenRun, embedded

from orchestrator.client.page.report import report_html
from orchestrator.core.state.events import Progress
from orchestrator.store.runs.history_file import HistoryFile

STEPS, LINES_A_STEP = 10_000, 20


def test_report_of_8_tasks_with_10_000_steps_and_200_000_lines_is_under_5_mb() -> None:
    chance = random.Random(1)
    with WrittenRun(8) as run:
        run.start()
        history = HistoryFile(run.store.directory, run.store.paths.samples.name)
        for step in range(STEPS):
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
        run.end(STEPS + 3.0)
        report = report_html([run.page()])
    data = embedded(report)
    assert len(data["log-0"]["text"]) == STEPS * LINES_A_STEP
    for columns in data["runs"][0]["series"]["tasks"].values():
        assert len(columns["loss"]) >= 1000 and columns["time"][-1] > STEPS - 10
    assert len(report) < 5_000_000
