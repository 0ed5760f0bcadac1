"""`Cluster`, the runs of a Python program: how they end, what is raised, and what they are called."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import lives, until

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
from orchestrator.core.state.events import Progress
from orchestrator.core.state.result import BadLoss
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


def python(program: str) -> tuple[str, ...]:
    """A Python that starts fast: no site-packages."""
    return (sys.executable, "-I", "-S", "-c", program)


def test_end_of_a_run() -> None:
    with cluster("true") as run:
        result = run.wait()
        assert run.wait() == result
    assert (result.outcome, result.exit_code, result.attempts) == ("succeeded", 0, 1)
    assert find(run.id).status().run.state == "succeeded"


def test_exception_has_the_result() -> None:
    def ends(run: Run, what: type[Any]) -> Any:
        with pytest.raises(what) as caught:
            run.wait()
        assert not any(task.pid and lives(task.pid) for task in run.status().tasks), "before the with is left"
        return caught.value

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


@pytest.mark.parametrize("name", ["logs", "x" * 150])
def test_run_with_log_dir_works_like_any_other(tmp_path: Path, name: str) -> None:
    """However long its path is."""
    with cluster(
        "sh", "-c", "echo $ORCH_RUN_DIR; exec sleep 600", log_dir=str(tmp_path / name), workers=1
    ) as run:
        run.wait_ready()
        until(lambda: run.log("worker:0").read_text() == f"{run.dir}\n")
        assert run.dir == tmp_path / name / run.id == find(run.id).dir
        assert (runs_dir() / run.id).is_symlink()
        run.down()
        assert run.wait(check=False).outcome == "stopped"


def test_progress_just_before_the_exit_is_recorded() -> None:
    said = '{"epoch": 3, "loss": NaN}\\n{"phase": "done"}\\n'
    with cluster(
        *python(f"import os; os.write(int(os.environ['ORCH_PROGRESS_FD']), b'{said}')"), workers=1
    ) as run:
        assert run.wait().succeeded
    progress = run.status().tasks[0].progress
    assert progress == Progress(phase="done", epoch=3, bad_loss=BadLoss(value="nan", epoch=3))


@pytest.mark.parametrize("clusters", [6, pytest.param(20, marks=pytest.mark.slow)])
def test_simultaneous_clusters_share_no_port(clusters: int) -> None:
    made = [cluster(grace="0s") for _ in range(clusters)]
    with ExitStack() as stack:
        with ThreadPoolExecutor(8) as pool:
            runs = list(pool.map(lambda each: stack.enter_context(each), made))
        for run in runs:
            run.wait_ready()
        addresses = [task.address for run in runs for task in run.status().tasks]
        assert len(addresses) == len(set(addresses)) == 2 * clusters
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda run: run.down(), runs))
