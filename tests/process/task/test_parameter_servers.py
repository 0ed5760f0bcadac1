"""With real TensorFlow: a script on Keras 3 trains variables cut over parameter servers, and no step is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tasks import Task
from test_cluster_stop import started

# A busy machine may take several times as long as an idle one: a test that reaches this limit hangs.
LONGEST_RUN_S = 300.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(360)]

SCRIPT = Path(__file__).with_name("servers_script.py")
JOBS = {"chief": 1, "worker": 2, "ps": 2}
TASKS = ("chief:0", "worker:0", "worker:1", "ps:0", "ps:1")
STEPS = 60


@pytest.mark.parametrize("words", [("built",), ()])
def test_cut_variables_are_trained_saved_and_counted(words: tuple[str, ...], tmp_path: Path) -> None:
    with started(tmp_path, JOBS, TASKS, *words, script=SCRIPT, fixes=True) as (chief, *others):
        assert chief.process.wait(LONGEST_RUN_S) == 0, chief.output
    found = result_of(chief)
    assert (found["steps"], found["counted"], found["parts"]) == (STEPS, STEPS, 2)
    assert found["restored"] is True
    assert found["last"] < found["first"] / 2
    assert found["lowest"] >= 0  # the constraint of the whole variable
    assert "loses steps and metrics" in chief.output
    assert "cannot train variables that a partitioner cuts" in chief.output
    assert not any("orch:" in other.output for other in others)


def test_without_the_fixes_cut_variables_cannot_be_trained(tmp_path: Path) -> None:
    with started(tmp_path, JOBS, TASKS, "built", script=SCRIPT, fixes=False) as (chief, *_):
        assert chief.process.wait(LONGEST_RUN_S) != 0
    assert "'ShardedVariable' object has no attribute 'handle'" in chief.output


def result_of(chief: Task) -> dict[str, Any]:
    (line,) = [line for line in chief.output.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(line)
    return found
