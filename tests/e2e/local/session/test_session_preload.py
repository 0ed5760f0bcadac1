"""A session keeps the preloaded modules for the next cluster."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import until

from orchestrator import Session
from orchestrator.client.api import Run

pytestmark = pytest.mark.usefixtures("no_leaked_descriptors")

FITS = """
import json, os
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices((tf.ones((32, 4)), tf.ones((32, 1)))).batch(8).repeat()
history = model.fit(data, epochs=1, steps_per_epoch=3, verbose=0)
print("fitted", len(history.history["loss"]))
"""


def the(kind: str, run: Run) -> dict[str, Any]:
    (event,) = events_of(run, kind)
    return event


def events_of(run: Run, kind: str) -> list[dict[str, Any]]:
    lines = run.view.paths.events.read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["type"] == kind]


def methods(run: Run) -> set[str]:
    return {event["method"] for event in events_of(run, "task_started")}


def script(directory: Path, text: str) -> str:
    (directory / "look.py").write_text(text)
    return "look.py"


def test_next_run_reuses_preloaded_modules(tmp_path: Path) -> None:
    look = script(tmp_path, "import decimal, os; print(os.environ['ORCH_RUN_ID'], os.environ.get('MINE'))")
    seconds = []
    with Session() as session:
        for mine in ("1", "1"):
            with session.up(
                2, [look], tmp_path, preload="decimal", env={"MINE": mine}, log_dir=tmp_path / "runs"
            ) as run:
                run.wait()
            assert methods(run) == {"fork"}
            assert run.log("worker:1").read_text() == f"{run.id} 1\n"
            seconds.append(the("preloaded", run)["seconds"])
    assert seconds[0] > 0 and seconds[1] == 0


@pytest.mark.parametrize(
    "change", [{"env": {"MINE": "2"}}, {"preload": "decimal,fractions"}, {"cwd": "elsewhere"}]
)
def test_changed_import_conditions_preload_again(tmp_path: Path, change: dict[str, object]) -> None:
    (tmp_path / "elsewhere").mkdir()
    look = script(tmp_path, "import decimal; print('hello')")
    script(tmp_path / "elsewhere", "import decimal; print('hello')")
    with Session() as session:
        for options in ({}, change):
            chosen = {"preload": "decimal", "env": {"MINE": "1"}, **options}
            with session.up(1, [look], tmp_path, **chosen) as run:
                run.wait()
            assert methods(run) == {"fork"} and the("preloaded", run)["seconds"] > 0


def until_reaped(agent: psutil.Process, child: psutil.Process) -> None:
    """Wait until the agent has reaped its child."""
    until(lambda: child not in agent.children())


def test_killed_preloader_is_replaced(tmp_path: Path) -> None:
    look = script(tmp_path, "import decimal; print('hello')")
    with Session() as session:
        for _ in range(2):
            with session.up(1, [look], tmp_path, preload="decimal") as run:
                assert run.wait().succeeded
            (agent,) = psutil.Process(run.view.record.supervisor_pid).children()
            preloaders = agent.children()
            assert len(preloaders) == 1
            preloaders[0].kill()
            # Otherwise the agent would ask the killed preloader to fork the next run's task.
            until_reaped(agent, preloaders[0])


def test_runs_without_preloading_may_come_in_between(tmp_path: Path) -> None:
    look = script(tmp_path, "import decimal; print('hello')")
    with Session() as session:
        with session.up(1, [look], tmp_path, preload="decimal") as run:
            run.wait()
        with session.up(1, ["true"], tmp_path) as run:
            run.wait()
        assert methods(run) == {"spawn"} and not events_of(run, "preloaded")
        with session.up(1, [look], tmp_path, preload="decimal", start="spawn") as run:
            run.wait()
        assert methods(run) == {"spawn"}
        with session.up(1, [look], tmp_path, preload="decimal") as run:
            run.wait()
        assert methods(run) == {"fork"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_second_cluster_does_not_import_tensorflow_again(tmp_path: Path) -> None:
    look = script(tmp_path, FITS)
    fitted = []
    with Session() as session:
        for _ in range(2):
            with session.up(2, [sys.executable, look], tmp_path) as run:
                run.wait()
            assert methods(run) == {"fork"}
            fitted.append(run.log("worker:0").read_text().count("fitted 1"))
            seconds = the("preloaded", run)["seconds"]
    assert fitted == [1, 1]
    assert seconds == 0
