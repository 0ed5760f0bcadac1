"""`Cluster`, the runs of a Python program: how they end, what is raised, and what they are called."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import lives

from orchestrator import (
    Cluster,
    NameTaken,
    Run,
    RunLost,
    RunStopped,
    RunTimedOut,
    TaskFailed,
    UsageError,
    down,
    find,
    ls,
    status,
)
from orchestrator.client.launch import create_run, load_request, make_room
from orchestrator.links.supervisor_link import start_supervisor
from orchestrator.store.runs.paths import runs_dir

_SLEEPS = ("sleep", "600")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_leaked_descriptors: None) -> Path:
    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


def cluster(*command: str, workers: int = 2, **options: Any) -> Cluster:
    return Cluster(workers=workers, command=command or _SLEEPS, **options)


def test_exception_has_the_result() -> None:
    def ends(run: Run, what: type[Any]) -> Any:
        with pytest.raises(what) as caught:
            run.wait()
        assert not any(task.pid and lives(task.pid) for task in run.status().tasks), "before the with is left"
        return caught.value

    with cluster("true") as run:
        result = run.wait()
        assert run.wait() == result
    assert (result.outcome, result.exit_code, result.attempts) == ("succeeded", 0, 1)
    with cluster("sh", "-c", "[ $ORCH_TASK = worker:1 ] && exit 3; exec sleep 600") as run:
        failed = ends(run, TaskFailed)
    assert (failed.task, failed.exit_code, failed.log) == ("worker:1", 3, run.log("worker:1"))
    assert failed.result.detection_s is not None and failed.result.teardown_s is not None
    with cluster(timeout="300ms", grace="200ms") as run:
        late = ends(run, RunTimedOut)
    assert (late.exit_code, late.result.outcome) == (124, "timed_out")
    with cluster() as run:
        assert status().run.id == run.id
        run.wait_ready()
        assert {task.state for task in run.status().tasks} == {"running"}
        ended = down(run.name)
        assert (ended.run_id, ended.tasks, ended.swept) == (run.id, ("worker:0", "worker:1"), 0)
        assert ends(run, RunStopped).exit_code == 143
        assert run.down().tasks == ()
    with cluster() as run:
        run.wait_ready()
        agent = psutil.Process(run.status().tasks[0].pid).parent()
        assert agent is not None
        agent.suspend()  # otherwise it would end the tasks a moment later
        os.kill(run.view.record.supervisor_pid, 9)
        lost = ends(run, RunLost)
        agent.resume()
    assert (lost.exit_code, lost.result.outcome) == (125, "lost")


def test_leaving_the_block_stops_the_run() -> None:
    with cluster() as run:
        with pytest.raises(TimeoutError):
            run.wait(timeout_s=0.05)
        run.wait_ready()
        pids = [task.pid for task in run.status().tasks]
    assert not any(pid and lives(pid) for pid in pids)
    assert run.wait(check=False).outcome == "stopped"


def test_run_whose_path_is_long_works_like_any_other(tmp_path: Path) -> None:
    with cluster(log_dir=str(tmp_path / ("x" * 150)), workers=1) as run:
        run.wait_ready()
        assert run.dir == tmp_path / ("x" * 150) / run.id == find(run.id).dir
        assert (runs_dir() / run.id).is_symlink()
        run.down()
        assert run.wait(check=False).outcome == "stopped"


def test_wrong_request_starts_nothing(here: Path) -> None:
    (here / "link").symlink_to("/nonexistent/place")
    for wrong in ({"workers": 0}, {"workers": 10_000}, {"checkpoint_dir": "link"}):
        with pytest.raises(UsageError), cluster(**wrong):
            pass
    assert list(ls()) == []


def test_run_that_takes_the_name_while_another_is_replaced_is_named() -> None:
    request = load_request(1, ["true"], None, {"name": "mine", "replace": True})
    make_room(request)
    taken = pytest.raises(NameTaken, match="another run took the name 'mine' while --replace stopped")
    with cluster(name="mine") as other, start_supervisor() as supervisor:
        with taken as caught:
            create_run(supervisor, request)
        assert "give the command again" in str(caught.value)
        assert [each.id for each in ls()] == [other.id]


def test_simultaneous_clusters_share_no_port() -> None:
    made = [cluster(grace="0s") for _ in range(6)]
    with ExitStack() as stack, ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(stack.enter_context, made))
        for run in runs:
            run.wait_ready()
        addresses = {task.address for run in runs for task in run.status().tasks}
        assert len(addresses) == 12
        list(pool.map(Run.down, runs))
