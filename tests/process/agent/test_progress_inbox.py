"""The agent's progress inbox: lines are merged and sent at intervals, and immediately if they are marked."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from worker.agent.progress import ProgressInbox
from worker.agent.tasks import TaskProcess

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
def pipe() -> Iterator[TaskPipe]:
    made = TaskPipe()
    yield made
    os.close(made.writer)
    made.inbox.remove(made.task)
    made.poller.close()


def test_progress_soon_after_the_last_is_merged_and_sent_later(pipe: TaskPipe) -> None:
    pipe.send(step=1, loss=0.5)
    assert pipe.take(NOW) == {"worker:0": {"step": 1, "loss": 0.5}}
    pipe.send(step=2)
    pipe.send(step=3)
    assert pipe.inbox.due == pytest.approx(NOW + 0.1)
    assert pipe.take(NOW + 0.09) == {}
    assert pipe.take(NOW + 0.1) == {"worker:0": {"step": 3}}
    assert pipe.inbox.due == float("inf")


@pytest.mark.parametrize(("tasks", "interval_s"), [(4, 0.1), (400, 0.1), (4000, 1.0)])
def test_interval_is_longer_in_a_run_of_many_tasks(pipe: TaskPipe, tasks: int, interval_s: float) -> None:
    pipe.inbox.set_tasks(tasks)
    pipe.send(step=1)
    pipe.take(NOW)
    pipe.send(step=2)
    assert pipe.inbox.due == pytest.approx(NOW + interval_s)


def test_awaited_progress_is_sent_immediately(pipe: TaskPipe) -> None:
    pipe.send(step=1)
    pipe.take(NOW)
    pipe.send(step=2)
    pipe.send(step=3, at_once=True)
    assert pipe.inbox.due <= NOW + 0.01
    assert pipe.take(NOW + 0.01) == {"worker:0": {"step": 3}}


def test_awaited_progress_is_sent_at_most_every_10_ms(pipe: TaskPipe) -> None:
    pipe.send(step=1, at_once=True)
    pipe.take(NOW)
    pipe.send(step=2, at_once=True)
    assert pipe.take(NOW + 0.005) == {}
    assert pipe.take(NOW + 0.01) == {"worker:0": {"step": 2}}


@pytest.mark.parametrize("word", [False, None, 1, "yes", {}])
def test_at_once_must_be_true(pipe: TaskPipe, word: object) -> None:
    pipe.send(step=1)
    pipe.take(NOW)
    pipe.send(step=2, at_once=word)
    assert pipe.take(NOW + 0.05) == {}
    assert pipe.take(NOW + 0.1) == {"worker:0": {"step": 2}}
