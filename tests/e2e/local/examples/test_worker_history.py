"""The history of a training: resumed, with NaN, of loops that do not report steps, and after a killed chief."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cluster import names_in

from worker.training.data.datasets import load_dataset
from worker.training.options.fields import Options
from worker.training.process.environment import Place

if TYPE_CHECKING:
    from worker.training.results.watchers import History

pytestmark = pytest.mark.timeout(300)


def make_history(directory: Path, done: int = 0) -> History:
    from worker.training.job import Job
    from worker.training.results.watchers import History

    options = Options(checkpoint_dir=directory, steps_per_epoch=5)
    return History(Job(options, Place(), load_dataset("digits", 0)), done)


def written(directory: Path) -> Any:
    text = (directory / "history.json").read_text()
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def epochs_in(directory: Path) -> list[int]:
    return [one["epoch"] for one in written(directory)["epochs"]]


def train_epochs(history: History, first: int, last: int) -> None:
    for epoch in range(first, last + 1):
        history.epoch_began(epoch)
        history.step_ended(1, dict)
        history.epoch_ended(epoch, {"loss": 1 / epoch, "accuracy": 0.5})


def test_resumed_history_continues_from_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from worker.training.results.evaluation import Evaluation

    *runs, checkpoints = (tmp_path / name for name in ("run-1", "run-2", "checkpoints"))
    for directory in (*runs, checkpoints):
        directory.mkdir()
    monkeypatch.setenv("ORCH_RUN_DIR", str(runs[0]))
    train_epochs(make_history(checkpoints), 1, 4)
    monkeypatch.setenv("ORCH_RUN_DIR", str(runs[1]))
    # The fourth epoch was not in a checkpoint.
    resumed = make_history(checkpoints, done=3)
    train_epochs(resumed, 4, 5)
    resumed.evaluated(Evaluation(loss=0.1, accuracy=0.9, examples=355))
    assert epochs_in(checkpoints) == [1, 2, 3, 4, 5]
    assert written(checkpoints)["held_out"] == {"loss": 0.1, "accuracy": 0.9, "examples": 355}
    assert written(runs[1]) == written(checkpoints)
    assert epochs_in(runs[0]) == [1, 2, 3, 4]
    assert names_in(runs[1]) == ["history.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"epochs": 3}', '{"epochs": [3, {"epoch": "1"}, {}]}'])
def test_file_that_is_not_a_history_is_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / "history.json").write_text(text)
    train_epochs(make_history(tmp_path, done=2), 3, 3)
    assert epochs_in(tmp_path) == [3]


def test_epoch_has_all_its_steps_if_the_loop_does_not_report_them(tmp_path: Path) -> None:
    history = make_history(tmp_path)
    history.epoch_began(1)
    history.epoch_ended(1, {"loss": 2.0})
    history.epoch_began(2)
    for step in (4, 5):
        history.step_ended(step, dict)
    history.epoch_ended(2, {"loss": 1.0})
    assert [epoch["steps"] for epoch in written(tmp_path)["epochs"]] == [5, 2]


def test_unfinished_file_of_a_killed_chief_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, kept = tmp_path / "run", tmp_path / "kept"
    monkeypatch.setenv("ORCH_RUN_DIR", str(run))
    for directory in (run, kept):
        directory.mkdir()
        (directory / ".4711.history.json").touch()
        (directory / "history.json").write_text('{"epochs": [{"epoch": 1}]}')
    make_history(kept, done=1)
    assert [path.name for path in (*run.iterdir(), *kept.iterdir())] == ["history.json"] * 2


def test_loss_that_is_nan_is_null(tmp_path: Path) -> None:
    from worker.training.results.evaluation import Evaluation

    history = make_history(tmp_path)
    history.epoch_began(1)
    history.epoch_ended(1, {"loss": float("nan"), "accuracy": 0.1})
    history.evaluated(Evaluation(float("inf"), 0.1, 355))
    document = written(tmp_path)
    assert (document["epochs"][0]["loss"], document["epochs"][0]["accuracy"]) == (None, 0.1)
    assert document["held_out"] == {"loss": None, "accuracy": 0.1, "examples": 355}
    # The file can be extended.
    train_epochs(make_history(tmp_path, done=1), 2, 2)
    assert epochs_in(tmp_path) == [1, 2]
