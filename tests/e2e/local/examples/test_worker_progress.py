"""What a training reports: lines of progress, how the agent merges them, and the history file."""

from __future__ import annotations

import contextlib
import json
import os
import select
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from cluster import names_in
from hypothesis import given
from hypothesis import strategies as st

from worker.agent.progress import ProgressInbox
from worker.agent.tasks import TaskProcess
from worker.training.data.datasets import load_dataset
from worker.training.options.fields import Options
from worker.training.process.environment import Place
from worker.training.process.progress import AWAITED_VARIABLE, LONGEST_LINE, VARIABLE, ProgressChannel, encode

if TYPE_CHECKING:
    from worker.training.results.watchers import History


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for fd in (reader, writer):
        with contextlib.suppress(OSError):
            os.close(fd)


def received(reader: int) -> list[dict[str, object]]:
    return [json.loads(line) for line in os.read(reader, 65536).splitlines()]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_steps_are_sent_at_most_five_times_a_second_and_phases_always(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    clock = Clock()
    channel = ProgressChannel(writer, clock)
    channel.phase("importing")
    channel.phase("training", epoch=1, epochs=2)
    for step in range(100):
        clock.now += 0.01
        channel.step(lambda step=step: {"step": step})  # type: ignore[misc]
    lines = received(reader)
    assert lines[:2] == [{"phase": "importing"}, {"phase": "training", "epoch": 1, "epochs": 2}]
    assert {line["phase"] for line in lines[2:]} == {"training"}
    assert 4 <= len(lines[2:]) <= 5


def test_awaited_step_is_sent_immediately_and_marked(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = pipe
    monkeypatch.setenv(VARIABLE, str(writer))
    monkeypatch.setenv(AWAITED_VARIABLE, "3,x,70")
    channel = ProgressChannel.from_environment()
    channel._clock = Clock()  # with the real clock a slow machine would send another step
    channel.phase("training")
    for position in range(1, 6):
        channel.step(lambda position=position: {"step": position}, position)  # type: ignore[misc]
    assert received(reader)[1:] == [{"phase": "training", "step": 3, "at_once": True}]


def test_step_values_are_not_read_if_no_line_is_due(pipe: tuple[int, int]) -> None:
    channel = ProgressChannel(pipe[1], Clock())
    channel.phase("training")
    channel.step(lambda: pytest.fail("values were made"))


def test_full_pipe_loses_lines_and_does_not_block(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    channel = ProgressChannel(writer)
    for epoch in range(20_000):
        channel.phase("training", epoch=epoch)
    lines = received(reader)
    assert lines[0] == {"phase": "training", "epoch": 0}
    channel.phase("done")
    assert received(reader)[-1]["phase"] in ("training", "done")


def test_closed_reader_is_not_an_error(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.close(reader)
    channel = ProgressChannel(writer)
    channel.phase("training")
    channel.phase("done")


def test_the_descriptor_is_not_inherited_by_children(pipe: tuple[int, int]) -> None:
    writer = pipe[1]
    os.set_inheritable(writer, True)
    ProgressChannel(writer)
    assert not os.get_inheritable(writer)
    assert not os.get_blocking(writer)


@pytest.mark.parametrize("text", ["", "x", "-1", "999999", "9" * 30])
def test_without_a_usable_descriptor_nothing_happens(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    ProgressChannel.from_environment().phase("training", epoch=1)


def test_nan_loss_is_named_and_other_values_that_are_not_finite_become_null() -> None:
    line = encode(
        {"phase": "training", "loss": float("nan"), "metrics": {"accuracy": float("inf"), "auc": 0.5}}
    )
    assert json.loads(line) == {"phase": "training", "loss": "nan", "metrics": {"accuracy": None, "auc": 0.5}}


metrics = st.dictionaries(st.text(), st.floats())


@given(st.none() | st.floats(), metrics, st.integers())
def test_every_line_is_one_short_line_of_strict_json(
    loss: float | None, values: dict[str, float], epoch: int
) -> None:
    line = encode({"phase": "training", "epoch": epoch, "loss": loss, "metrics": values})
    assert len(line) <= LONGEST_LINE
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    parsed = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert parsed["phase"] == "training"


# -- the agent's inbox

# Seconds on the inbox's clock; the tests do not wait.
NOW = 100.0


class TaskPipe:
    """A task's pipe, and the inbox that reads it."""

    def __init__(self) -> None:
        reader, self.writer = os.pipe2(os.O_NONBLOCK)
        self.poller = select.epoll()
        self.inbox = ProgressInbox(self.poller)
        task = SimpleNamespace(name="worker:0", progress_fd=reader, progress_rest=b"", ask_again=lambda: None)
        self.task = cast(TaskProcess, task)
        self.inbox.add(self.task)

    def send(self, **progress: object) -> None:
        os.write(self.writer, json.dumps(progress).encode() + b"\n")
        self.inbox.serve(self.task.progress_fd)

    def take(self, now: float) -> dict[str, Any]:
        return {name: json.loads(text) for name, text in self.inbox.take(now).items()}


@pytest.fixture
def inbox() -> Iterator[TaskPipe]:
    made = TaskPipe()
    yield made
    os.close(made.writer)
    made.inbox.remove(made.task)
    made.poller.close()


def test_progress_soon_after_the_last_is_merged_and_sent_later(inbox: TaskPipe) -> None:
    inbox.send(step=1, loss=0.5)
    assert inbox.take(NOW) == {"worker:0": {"step": 1, "loss": 0.5}}
    inbox.send(step=2)
    inbox.send(step=3)
    assert inbox.inbox.due == pytest.approx(NOW + 0.1)
    assert inbox.take(NOW + 0.09) == {}
    assert inbox.take(NOW + 0.1) == {"worker:0": {"step": 3}}
    assert inbox.inbox.due == float("inf")


@pytest.mark.parametrize(("tasks", "interval_s"), [(4, 0.1), (400, 0.1), (4000, 1.0)])
def test_interval_is_longer_in_a_run_of_many_tasks(inbox: TaskPipe, tasks: int, interval_s: float) -> None:
    inbox.inbox.set_tasks(tasks)
    inbox.send(step=1)
    inbox.take(NOW)
    inbox.send(step=2)
    assert inbox.inbox.due == pytest.approx(NOW + interval_s)


def test_awaited_progress_is_sent_immediately_but_at_most_every_10_ms(inbox: TaskPipe) -> None:
    inbox.send(step=1)
    inbox.take(NOW)
    inbox.send(step=2)
    inbox.send(step=3, at_once=True)
    assert inbox.inbox.due <= NOW + 0.01
    assert inbox.take(NOW + 0.005) == {}
    assert inbox.take(NOW + 0.01) == {"worker:0": {"step": 3}}


@pytest.mark.parametrize("word", [False, None, 1, "yes", {}])
def test_at_once_must_be_true(inbox: TaskPipe, word: object) -> None:
    inbox.send(step=1)
    inbox.take(NOW)
    inbox.send(step=2, at_once=word)
    assert inbox.take(NOW + 0.05) == {}
    assert inbox.take(NOW + 0.1) == {"worker:0": {"step": 2}}


# -- the history

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
