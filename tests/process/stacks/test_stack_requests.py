"""Answers go to the requests that asked for them, with native frames or without."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

from waiting import until

from orchestrator import Cluster
from orchestrator.core.state.result import TaskStack
from orchestrator.supervisor.control_orders import NATIVE_PATIENCE_S, PATIENCE_S, StackRequests

OWN = TaskStack(how="signal", frames=("train.py:3 main",))
NATIVE = TaskStack(how="py-spy", frames=("libc.so.6 read", "train.py:3 main"))


def ask(requests: StackRequests, *tasks: str, native: bool = False) -> list[dict[str, TaskStack]]:
    """Request stacks. Return the list that will have the answer."""
    answers: list[dict[str, TaskStack]] = []
    requests.add(tasks, native, 100.0, answers.append)
    return answers


def test_answer_goes_to_matching_requests() -> None:
    requests = StackRequests(lambda tasks, native: tasks)
    native = ask(requests, "a", native=True)
    own, own_too = ask(requests, "a"), ask(requests, "a")
    requests.answered("a", False, OWN, 100.1)
    assert (native, own, own_too) == ([], [{"a": OWN}], [{"a": OWN}])
    late = ask(requests, "a")
    requests.answered("a", True, NATIVE, 100.2)
    assert (native, late) == ([{"a": NATIVE}], [])
    requests.answered("a", False, OWN, 100.3)
    assert late == [{"a": OWN}]
    assert requests.due is None


def test_native_requests_wait_longer() -> None:
    requests = StackRequests(lambda tasks, native: tasks)
    native, own = ask(requests, "a", "b", native=True), ask(requests, "a", "b")
    assert requests.due == 100 + PATIENCE_S
    requests.answered("a", False, OWN, 101.0)
    requests.close_due(100 + PATIENCE_S)
    assert (own, native) == ([{"a": OWN}], [])
    assert requests.due == 100 + NATIVE_PATIENCE_S
    requests.close_due(100 + NATIVE_PATIENCE_S)
    assert native == [{}]


def test_exited_task_completes_its_requests() -> None:
    requests = StackRequests(lambda tasks, native: tasks)
    asker = ask(requests, "a", "b")
    requests.answered("a", False, OWN, 100.1)
    assert asker == []
    requests.task_ended("b", 100.2)
    requests.task_ended("a", 100.2)
    requests.cancel_all()
    assert asker == [{"a": OWN}]
    assert ask(requests) == [{}]  # of no task: immediately


SCRIPT = """
import os, time
def load_data():
    time.sleep(600)
if os.environ["ORCH_TASK"] == "worker:1":
    load_data()
while True:
    print("step", flush=True)
    time.sleep(0.2)
"""


def test_stacks_of_a_silent_task_are_noticed_in_a_real_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    cluster = Cluster(workers=2, command=[sys.executable, "train.py"], directory=tmp_path)
    request = cluster._request
    # The default is five minutes. A task needs less than this to start on a busy machine.
    cluster._request = replace(request, spec=request.spec.model_copy(update={"silence_notice_s": 3.0}))
    with cluster as run:

        def noticed() -> str | None:
            run.view.refresh()
            return next((text for text in run.view.state.notices if text.startswith("worker:1")), None)

        said = r"worker:1 has been silent and idle for \d+s: in load_data \(train\.py:4\)"
        assert re.fullmatch(said, until(noticed))
