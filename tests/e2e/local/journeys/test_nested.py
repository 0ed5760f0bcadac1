"""A task that starts its own script as a run: the fourth nested run is refused."""

from __future__ import annotations

import os
import sys

import pytest
from orch_command import ORCH, Orch

import orchestrator

_AGAIN = f"""
import os, subprocess, sys
print("depth", os.environ["ORCH_DEPTH"])
up = ["{ORCH}", "up", "--", sys.executable, *sys.argv]
sys.exit(subprocess.run(up).returncode)
"""
_REFUSED = (
    "orch does not start a run inside of 3 others (ORCH_DEPTH is 3); a task probably starts its own script"
)


def test_the_fourth_level_is_refused(orch: Orch) -> None:
    """The run is the third one, and its task starts it again."""
    done = orch.run(script=_AGAIN, env={"ORCH_DEPTH": "2"})
    assert done.code == 2
    assert done.log("worker-0").startswith("depth 3\n") and _REFUSED in done.log("worker-0")
    assert orch.run_dirs() == [done.run]


def test_the_variable_counts_the_runs_around(orch: Orch) -> None:
    refused = {
        "3": _REFUSED,
        "77": _REFUSED.replace("is 3", "is 77"),
        "many": "ORCH_DEPTH is 'many', not the number of runs around this one; unset it",
        "-1": "ORCH_DEPTH is '-1', not the number",
        "9" * 5000: f"ORCH_DEPTH is '{'9' * 40}', not the number",
    }
    for value, reason in refused.items():
        done = orch.within("up", "--", "true", env={"ORCH_DEPTH": value})
        assert (done.code, done.out) == (2, "") and reason in done.err, value[:9]
    assert not orch.run_dirs()
    # An empty variable counts as not set.
    done = orch.run(script="import os; print(os.environ['ORCH_DEPTH'])", env={"ORCH_DEPTH": ""})
    assert (done.code, done.out) == (0, "worker:0 | 1\n")


def test_runs_from_python_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    is_refused = pytest.raises(orchestrator.UsageError, match="orch does not start a run inside of 3")
    with orchestrator.Session() as session:
        monkeypatch.setenv("ORCH_DEPTH", "2")
        assert session.run(os.getenv, ("ORCH_DEPTH",), workers=1) == ["3"]
        monkeypatch.setenv("ORCH_DEPTH", "3")
        with is_refused:
            session.run(os.getenv, ("ORCH_DEPTH",), workers=1)
    with is_refused:
        orchestrator.run(os.getenv, ("ORCH_DEPTH",), workers=1)
    with is_refused, orchestrator.Cluster(command=["true"]):
        pass


def test_detached_run_of_a_task_says_that_it_ends_with_the_task(orch: Orch) -> None:
    script = (
        f'import subprocess; subprocess.run(["{ORCH}", "up", "-d", "--name", "inner", "--", "sleep", "600"])'
    )
    done = orch("up", "--", sys.executable, orch.script("train.py", script))
    assert done.code == 0
    assert " ends with the task that has started it" in done.out
    # It depends on which of its processes is swept first.
    assert orch.status("inner")["run"]["state"] in ("stopped", "failed", "lost")
