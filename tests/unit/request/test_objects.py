"""The text that the objects of the Python API show in a shell or a notebook."""

from __future__ import annotations

from pathlib import Path

from making import cause, run_result, task_end

import orchestrator
from orchestrator.client.launch import Cluster
from orchestrator.client.session import Session


def test_public_names_are_listed() -> None:
    """Interactive shells complete them before their first use."""
    assert set(orchestrator.__all__) <= set(dir(orchestrator))
    assert [name for name in orchestrator.__all__ if getattr(orchestrator, name) is None] == []


def test_objects_show_what_they_are(tmp_path: Path) -> None:
    cluster = Cluster(
        workers=2,
        command=["echo", "--token=abc"],
        directory=tmp_path,
        name="digits",
        roles={"ps": {"count": 1}},
    )
    assert repr(cluster) == "<Cluster digits: 1 chief, 2 workers, 1 ps, echo '--token=***'; not started>"
    assert repr(Session()) == "<Session: no run yet>"
    (tmp_path / "train.py").write_text("")
    named = Cluster(2, ["train.py"], directory=str(tmp_path))
    assert repr(named) == f"<Cluster {tmp_path.name}: 2 workers, train.py; not started>"
    with Cluster(workers=2, command="true", directory=tmp_path, name="digits") as run:
        result = run.wait()
        assert repr(run) == f"<Run {run.id}: succeeded, attempt 1; {run.dir}>"
        assert (
            repr(run.status())
            == f"<Status {run.id}: succeeded, attempt 1; worker:0 succeeded, worker:1 succeeded>"
        )
    assert repr(run.status().tasks[0]).startswith("<TaskStatus worker:0: succeeded, pid ")
    assert repr(result) == str(result) == f"<RunResult {run.id}: succeeded, exit code 0>"


def test_text_of_a_task_is_cleaned() -> None:
    why = cause(text="exit\x1b[2J 3\n")
    result = run_result("failed", task_end(1, "failed", 3), cause=why, exit_code=3)
    assert repr(result) == "<RunResult run-1: failed, exit code 3; worker:1: exit 3\u240a>"
    assert repr(result.tasks) == "(<TaskEnd worker:1: failed, exit 3>,)"
