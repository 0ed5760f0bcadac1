"""Stops of a run at any time: exit codes, and that nothing is left. Names, ports and environment of runs."""

from __future__ import annotations

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from faulty_runs import (
    DAEMONISES,
    LONG,
    SLEEP,
    WRITES,
    cluster,
    find,
    grandchildren,
    supervisor_of,
    task_pids,
    up,
)
from waiting import lives, until

from orchestrator import Cluster, NameTaken, RunStopped, RunTimedOut, UsageError, down, ls, status
from orchestrator.client.launch import create_run, load_request, make_room
from orchestrator.core.state.events import Progress
from orchestrator.core.state.result import BadLoss, CauseKind
from orchestrator.links.client_link import Lifetime
from orchestrator.links.supervisor_link import start_supervisor
from orchestrator.store.runs.paths import runs_dir

POLITE = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); touch(f'up-{index}')"


def test_successful_run() -> None:
    with cluster("print(me)") as run:
        result = run.wait()
        assert run.wait() == result
    assert (result.outcome, result.exit_code, result.attempts) == ("succeeded", 0, 1)
    assert find(run.id).status().run.state == "succeeded"


def test_down_stops_the_run_and_is_idempotent() -> None:
    with cluster(POLITE, SLEEP, grace=LONG) as run:
        up()
        assert status().run.id == run.id
        ended = down(run.name)
        assert (ended.run_id, ended.tasks, ended.swept) == (run.id, ("worker:0", "worker:1"), 0)
        with pytest.raises(RunStopped) as caught:
            run.wait()
        assert caught.value.exit_code == 143
        assert {task.end for task in caught.value.result.tasks} == {"stopped by orch"}
        assert run.down().tasks == ()


def test_forced_down_kills_tasks_that_ignore_sigterm() -> None:
    with cluster(DAEMONISES, WRITES, SLEEP, grace=LONG) as run:
        up()
        pids = [*task_pids(run), *grandchildren()]
        run.down(force=True)
        assert not any(lives(pid) for pid in pids)
        assert run.wait(check=False).exit_code == 143


def test_tasks_that_ignore_sigterm_are_killed_after_the_grace_period() -> None:
    with cluster(DAEMONISES, WRITES, SLEEP, grace="0.2s") as run:
        up()
        pids = [*task_pids(run), *grandchildren()]
        run.down()
        assert not any(lives(pid) for pid in pids)
        assert {task.signal for task in run.wait(check=False).tasks} == {signal.SIGKILL}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_to_the_supervisor_is_an_orderly_stop(number: signal.Signals) -> None:
    with cluster(POLITE, SLEEP, grace=LONG) as run:
        up()
        os.kill(supervisor_of(run), number)
        result = run.wait(check=False)
    assert (result.outcome, result.exit_code) == ("stopped", 143)


@pytest.mark.parametrize("_", [0, 1, *(pytest.param(time, marks=pytest.mark.slow) for time in range(2, 12))])
def test_stop_right_after_the_start(_: int) -> None:
    """The stop must not wait for a control socket or for tasks that never start."""
    with cluster(SLEEP) as run:
        run.down()
        result = run.wait(check=False)
        assert (result.outcome, result.exit_code) == ("stopped", 143)
        assert {task.end for task in result.tasks} <= {"stopped by orch", "never started"}


def test_leaving_the_block_stops_the_run() -> None:
    with cluster(POLITE, SLEEP, grace=LONG) as run:
        pids = task_pids(run)
        up()
    assert not any(lives(pid) for pid in pids)
    assert run.wait(check=False).outcome == "stopped"


def test_timeout_ends_the_run() -> None:
    with cluster(DAEMONISES, WRITES, SLEEP, timeout="1s", grace="0.2s") as run:
        with pytest.raises(RunTimedOut) as caught:
            run.wait()
        assert (caught.value.exit_code, caught.value.result.outcome) == (124, "timed_out")
        assert caught.value.result.cause is not None
        assert caught.value.result.cause.kind is CauseKind.LIMIT
        assert not any(task.pid and lives(task.pid) for task in run.status().tasks)


def test_wait_raises_timeout_error() -> None:
    with cluster(SLEEP) as run:
        with pytest.raises(TimeoutError):
            run.wait(timeout_s=0.05)
        assert run.status().run.state in ("starting", "running")


def test_run_is_ready_when_all_tasks_run() -> None:
    with cluster(SLEEP) as run:
        run.wait_ready()
        assert run.status().run.state == "running"
        assert {task.state for task in run.status().tasks} == {"running"}


def test_explicit_name_can_be_live_once() -> None:
    with cluster(SLEEP, name="mine") as run:
        with pytest.raises(NameTaken) as caught, cluster(SLEEP, name="mine"):
            pass
        assert caught.value.exit_code == 4
        assert [each.id for each in ls()] == [run.id]
        with cluster(SLEEP, name="mine", replace=True) as other:
            assert run.wait(check=False).outcome == "stopped"
            assert other.status().run.state in ("starting", "running")
    with cluster("pass", name="mine") as again:
        assert again.wait().succeeded


def test_run_that_takes_the_name_while_another_is_replaced_is_named() -> None:
    request = load_request(1, ["true"], None, {"name": "mine", "replace": True})
    make_room(request)
    with cluster(SLEEP, name="mine") as other, start_supervisor() as supervisor:
        with pytest.raises(
            NameTaken, match="another run took the name 'mine' while --replace stopped"
        ) as caught:
            create_run(supervisor, request, Lifetime.CLIENT)
        assert "give the command again" in str(caught.value)
        assert [each.id for each in ls()] == [other.id]


def test_default_name_can_be_live_twice() -> None:
    with cluster(SLEEP) as one, cluster(SLEEP) as two:
        assert one.name == two.name
        assert one.id != two.id
        assert status().run.id == two.id


def test_run_with_log_dir_works_like_any_other(tmp_path: Path) -> None:
    with cluster("print(os.environ['ORCH_RUN_DIR'])", log_dir=str(tmp_path / "logs"), workers=1) as run:
        assert run.wait().succeeded
        assert run.dir == tmp_path / "logs" / run.id
        assert run.log("worker:0").read_text() == f"{run.dir}\n"
        assert find(run.id).dir == run.dir
    assert (runs_dir() / run.id).is_symlink()


def test_run_with_a_long_path_can_be_stopped(tmp_path: Path) -> None:
    with cluster(SLEEP, log_dir=str(tmp_path / ("x" * 150)), workers=1) as run:
        run.wait_ready()
        run.down()
        assert run.wait(check=False).outcome == "stopped"


def test_tasks_get_orch_variables() -> None:
    words = ("RUN_ID", "RUN_DIR", "TASK", "ATTEMPT", "CHECKPOINT_DIR", "SCRATCH_DIR")
    look = f"print(*(os.environ['ORCH_' + word] for word in {words}), sep='\\n')"
    with cluster(look, "print(os.path.isdir(os.environ['ORCH_SCRATCH_DIR']))") as run:
        run.wait()
    logs = [run.log(f"worker:{index}").read_text() for index in (0, 1)]
    seen = [dict(zip((*words, "there"), log.split(), strict=True)) for log in logs]
    assert [each["TASK"] for each in seen] == ["worker:0", "worker:1"]
    for each in seen:
        assert (each["RUN_ID"], each["RUN_DIR"], each["ATTEMPT"]) == (run.id, str(run.dir), "1")
        assert each["CHECKPOINT_DIR"] == str(run.checkpoint_dir)
        assert each["there"] == "True"
        assert not Path(each["SCRATCH_DIR"]).exists()
    assert seen[0]["SCRATCH_DIR"] != seen[1]["SCRATCH_DIR"]
    assert run.checkpoint_dir.is_dir()


def test_secrets_are_not_written_to_files(state_dir: Path) -> None:
    env = {"API_TOKEN": "hush-hush", "STORE": "https://me:hush-hush@example.org/x", "PLAIN": "visible"}
    with cluster("assert len(os.environ['API_TOKEN']) == 9", SLEEP, env=env) as run:
        run.wait_ready()
        words = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (supervisor_of(run), *task_pids(run))]
        run.down()
    files = [path for path in state_dir.rglob("*") if path.is_file()]
    assert [path for path in files if b"hush-hush" in path.read_bytes()] == []
    assert any(b"visible" in path.read_bytes() for path in files)
    assert b"@example.org" in (run.dir / "events.jsonl").read_bytes()
    # Any user may read command lines; the request is sent through the pipe.
    assert not any(b"hush-hush" in word for word in words)


def progress_of(words: str) -> tuple[str, Progress | None]:
    """The outcome and the known progress of a run whose task writes this text."""
    Path("words").write_text(words)
    write = "os.write(int(os.environ['ORCH_PROGRESS_FD']), open('words', 'rb').read())"
    with cluster(write, workers=1) as run:
        outcome = run.wait(check=False).outcome
        return outcome, run.status().tasks[0].progress


def test_progress_just_before_the_exit_is_recorded() -> None:
    words = '{"epoch": 3, "loss": NaN}\n{"phase": "done"}\n'
    assert progress_of(words) == (
        "succeeded",
        Progress(phase="done", epoch=3, bad_loss=BadLoss(value="nan", epoch=3)),
    )


def test_invalid_progress_is_ignored() -> None:
    words = '{"phase": "\\ud800"}\n[[[\n{"metrics": ' + '{"a":' * 300 + "1" + "}" * 301 + "\n"
    assert progress_of(words) == ("succeeded", None)


def test_wrong_request_starts_nothing(state_dir: Path) -> None:
    with pytest.raises(UsageError):
        Cluster(workers=0, command=["true"])
    with pytest.raises(UsageError), Cluster(workers=10_000, command=["true"]):
        pass
    assert list(ls()) == []


@pytest.mark.parametrize("clusters", [6, pytest.param(20, marks=pytest.mark.slow)])
def test_simultaneous_clusters_share_no_port(clusters: int) -> None:
    made = [Cluster(workers=2, command=["sleep", "600"], grace="0s") for _ in range(clusters)]
    with ExitStack() as stack:
        with ThreadPoolExecutor(8) as pool:
            runs_made = list(pool.map(lambda each: stack.enter_context(each), made))
        for run in runs_made:
            run.wait_ready()
        addresses = [task.address for run in runs_made for task in run.status().tasks]
        assert len(addresses) == 2 * clusters
        assert len(set(addresses)) == len(addresses)
        ports = [int((address or "").rpartition(":")[2]) for address in addresses]
        assert not any(can_bind(port) for port in ports)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda run: run.down(), runs_made))
    until(lambda: all(can_bind(port) for port in ports))


def can_bind(port: int) -> bool:
    """Whether another program can bind the port, with any option but the one agreed with the task."""
    for option in (None, socket.SO_REUSEADDR):
        with socket.socket() as probe:
            if option is not None:
                probe.setsockopt(socket.SOL_SOCKET, option, 1)
            try:
                probe.bind(("127.0.0.1", port))
                return True
            except OSError:
                continue
    return False
