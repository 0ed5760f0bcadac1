"""Answers go to the requests that asked for them, with native frames or without."""

from __future__ import annotations

from orchestrator.core.state.result import TaskStack
from orchestrator.supervisor.control_orders import NATIVE_PATIENCE_S, PATIENCE_S, StackRequests

OWN = TaskStack(how="signal", frames=("train.py:3 main",))
NATIVE = TaskStack(how="py-spy", frames=("libc.so.6 read", "train.py:3 main"))


class Asker:
    """A client with a request; `answers` holds what it was given."""

    def __init__(self, requests: StackRequests, *tasks: str, native: bool = False) -> None:
        self.answers: list[dict[str, TaskStack]] = []
        requests.add(tasks, native, 100.0, self.answers.append)


def test_answer_goes_to_matching_requests() -> None:
    requests = StackRequests(lambda tasks, native: tasks)
    native = Asker(requests, "a", native=True)
    own, own_too = Asker(requests, "a"), Asker(requests, "a")
    requests.answered("a", False, OWN, 100.1)
    assert (native.answers, own.answers, own_too.answers) == ([], [{"a": OWN}], [{"a": OWN}])
    late = Asker(requests, "a")
    requests.answered("a", True, NATIVE, 100.2)
    assert (native.answers, late.answers) == ([{"a": NATIVE}], [])
    requests.answered("a", False, OWN, 100.3)
    assert late.answers == [{"a": OWN}]
    assert requests.due is None


def test_native_requests_wait_longer() -> None:
    requests = StackRequests(lambda tasks, native: tasks)
    native, own = Asker(requests, "a", "b", native=True), Asker(requests, "a", "b")
    assert requests.due == 100 + PATIENCE_S
    requests.answered("a", False, OWN, 101.0)
    requests.close_due(100 + PATIENCE_S)
    assert (own.answers, native.answers) == ([{"a": OWN}], [])
    assert requests.due == 100 + NATIVE_PATIENCE_S
    requests.close_due(100 + NATIVE_PATIENCE_S)
    assert native.answers == [{}]


def test_exited_task_completes_its_requests() -> None:
    requests = StackRequests(lambda tasks, native: tasks)
    asker = Asker(requests, "a", "b")
    requests.answered("a", False, OWN, 100.1)
    assert asker.answers == []
    requests.task_ended("b", 100.2)
    requests.task_ended("a", 100.2)
    requests.cancel_all()
    assert asker.answers == [{"a": OWN}]
    assert Asker(requests).answers == [{}]  # of no task: immediately
