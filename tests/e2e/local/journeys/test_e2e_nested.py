"""A task that starts its own script as a run: the fourth nested run is refused."""

from __future__ import annotations

import os
import sys

import pytest
from orch_command import ORCH, Orch

import orchestrator

AGAIN = f"""
import os, subprocess, sys
print("depth", os.environ["ORCH_DEPTH"], flush=True)
up = ["{ORCH}", "up", *sys.argv[1:], "--", sys.executable, *sys.argv]
sys.exit(subprocess.run(up).returncode)
"""
REFUSED = (
    "orch does not start a run inside of 3 others (ORCH_DEPTH is {}); a task probably starts its own script"
)


@pytest.mark.parametrize("words", [(), ("-d", "--wait", "done")])
def test_the_fourth_level_is_refused(orch: Orch, words: tuple[str, ...]) -> None:
    done = orch("up", *words, "--", sys.executable, orch.script("again.py", AGAIN), *words)
    assert done.code == 2
    logs = [(run / "logs/worker-0.log").read_text() for run in orch.run_dirs()]
    assert [log.partition("\n")[0] for log in logs] == ["depth 1", "depth 2", "depth 3"]
    assert REFUSED.format(3) in logs[-1]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("3", REFUSED.format(3)),
        ("77", REFUSED.format(77)),
        ("many", "ORCH_DEPTH is 'many', not the number of runs around this one; unset it"),
        ("-1", "ORCH_DEPTH is '-1', not the number"),
        ("9" * 5000, f"ORCH_DEPTH is '{'9' * 40}', not the number"),
    ],
)
def test_the_variable_counts_the_runs_around(orch: Orch, value: str, reason: str) -> None:
    done = orch.within("up", "--", "true", env={"ORCH_DEPTH": value})
    assert (done.code, done.out) == (2, "") and reason in done.err
    assert not orch.run_dirs()


def test_an_empty_variable_counts_as_not_set(orch: Orch) -> None:
    done = orch.within("up", "--", "sh", "-c", "echo $ORCH_DEPTH", env={"ORCH_DEPTH": ""})
    assert (done.code, done.out) == (0, "worker:0 | 1\n")


def test_runs_from_python_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with orchestrator.Session() as session:
        for depth in ("2", "1"):
            monkeypatch.setenv("ORCH_DEPTH", depth)
            assert session.run(os.getenv, ("ORCH_DEPTH",), workers=1) == [str(int(depth) + 1)]
        monkeypatch.setenv("ORCH_DEPTH", "3")
        with pytest.raises(orchestrator.UsageError, match="orch does not start a run inside of 3"):
            session.run(os.getenv, ("ORCH_DEPTH",), workers=1)
    with pytest.raises(orchestrator.UsageError, match="orch does not start a run inside of 3"):
        orchestrator.run(os.getenv, ("ORCH_DEPTH",), workers=1)
    with (
        pytest.raises(orchestrator.UsageError, match="orch does not start a run inside of 3"),
        orchestrator.Cluster(command=["true"]),
    ):
        pass
