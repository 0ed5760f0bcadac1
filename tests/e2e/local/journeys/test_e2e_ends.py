"""`orch up` in the foreground: each way a run can end, its exit code, report and result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from orch_command import ORCH, Orch, Started
from waiting import lives, until, until_gone

from orchestrator.client.foreground import PATIENCE_S
from orchestrator.store.runs.locks import lock_name

_WITH_HANDLER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit("cleaned up"))
print("here", flush=True)
time.sleep(600)
"""
_SAVES_SLOWLY = """
import pathlib, signal, sys, time
def save(*_):
    print("saving", flush=True)
    for step in range(20):
        time.sleep(0.05)
        print("still saving", flush=True)
    pathlib.Path("saved").write_text("yes")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("here", flush=True)
time.sleep(600)
"""
_STUBBORN = ("sh", "-c", 'trap "" TERM INT HUP; echo here; while :; do sleep 1; done')
_SLEEPER = ("sh", "-c", "echo here; exec sleep 600")
# Limit for the client to leave a supervisor that does not answer.
_LEAVES_WITHIN_S = 15.0


def _up(orch: Orch, *words: str, tasks: int = 2, before: tuple[str, ...] = ()) -> Started:
    """Start a run with this number of tasks and wait until each has printed "here"."""
    started = orch.start("up", "-n", str(tasks), *words, before=before)
    started.until_out("| here\n", tasks)
    return started


def test_success(orch: Orch) -> None:
    done = orch("up", "-n", "2", "--", "sh", "-c", 'echo "hello from $ORCH_TASK"; echo aside >&2')
    assert done.code == 0
    assert sorted(done.lines) == [
        "worker:0 | aside",
        "worker:0 | hello from worker:0",
        "worker:1 | aside",
        "worker:1 | hello from worker:1",
    ]
    assert done.err.startswith(f"orch: {orch.run_dir().name} succeeded")
    result = orch.result()
    assert result["cause"] is None and result["first_failure"] is None
    assert [(end["task"], end["state"], end["exit_code"]) for end in result["tasks"]] == [
        ("worker:0", "succeeded", 0),
        ("worker:1", "succeeded", 0),
    ]


def test_failure_report_comes_last(orch: Orch) -> None:
    script = orch.script(
        "fails.py",
        "import os, time\n"
        'if os.environ["ORCH_TASK"] == "worker:1":\n    raise ValueError("[red]no data")\n'
        "time.sleep(600)\n",
    )
    done = orch("up", "-n", "3", "--", script)
    assert done.code == 1
    assert "worker:1 | ValueError: [red]no data\n" in done.out
    run = orch.run_dir()
    end = done.err.splitlines()
    assert end[-1] == "orch: worker:1 failed: ValueError: [red]no data (fails.py:3)"
    assert "  other tasks    worker:0, worker:2: stopped by orch" in end
    assert f"  log file       {run}/logs/worker-1.log" in end
    result = orch.result()
    assert result["schema_version"] == 1 and result["run_id"] == run.name
    assert (result["outcome"], result["exit_code"], result["attempts"]) == ("failed", 1, 1)
    assert result["cause"] == {
        "task": "worker:1",
        "kind": "exited",
        "text": "exit 1",
        "tasks": [],
        "host": None,
    }
    first = result["first_failure"]
    assert (first["task"], first["exit_code"], first["signal"]) == ("worker:1", 1, None)
    assert first["exception"] == "ValueError: [red]no data"
    assert first["log"] == f"{run}/logs/worker-1.log"
    assert result["detection_s"] >= 0 and result["teardown_s"] >= 0
    assert {end["task"]: end["state"] for end in result["tasks"]} == {
        "worker:0": "stopped",
        "worker:1": "failed",
        "worker:2": "stopped",
    }


@pytest.mark.parametrize(
    ("ending", "code"), [("exit 7", 7), ("exit 255", 255), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)]
)
def test_exit_code_of_first_failure_is_returned(orch: Orch, ending: str, code: int) -> None:
    command = f"[ $ORCH_TASK = worker:1 ] && {ending}; exec sleep 600"
    done = orch("up", "-q", "-n", "2", "--", "sh", "-c", command)
    assert done.code == code
    assert orch.result()["first_failure"]["task"] == "worker:1"
    assert orch.result()["exit_code"] == code


def test_first_ctrl_c_stops_in_order(orch: Orch) -> None:
    started = _up(orch, "--grace", "60s", "--", orch.script("handler.py", _WITH_HANDLER))
    pids = orch.pids()
    started.signal(signal.SIGINT)
    done = started.finish()
    assert done.code == 130
    assert done.out.count("cleaned up") == 2, "each task's SIGTERM handler ran and its output is shown"
    assert (orch.result()["outcome"], orch.result()["exit_code"]) == ("stopped", 130)
    assert not any(lives(pid) for pid in pids)


def test_second_ctrl_c_kills(orch: Orch) -> None:
    started = _up(orch, "--grace", "1h", "--", *_STUBBORN)
    pids = orch.pids()
    started.signal(signal.SIGINT)
    until(lambda: orch.status()["run"]["state"] == "stopping")
    assert all(lives(pid) for pid in pids)
    started.signal(signal.SIGINT)
    assert started.finish().code == 130
    assert not any(lives(pid) for pid in pids)
    assert orch.result()["exit_code"] == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_sighup_stop_the_run(orch: Orch, number: signal.Signals) -> None:
    started = _up(orch, "--", *_SLEEPER)
    pids = orch.pids()
    started.signal(number)
    assert started.finish().code == 143
    assert (orch.result()["outcome"], orch.result()["exit_code"]) == ("stopped", 143)
    assert not any(lives(pid) for pid in pids)


def test_run_under_nohup_ignores_sighup(orch: Orch) -> None:
    command = "echo here; until [ -e go ]; do sleep 0.1; done; echo on; until [ -e end ]; do sleep 0.1; done"
    started = _up(orch, "--", "sh", "-c", command, tasks=1, before=("nohup",))
    started.signal(signal.SIGHUP)
    (orch.directory / "go").touch()
    started.until_out("| on\n")  # shown by a client that has received its signal
    (orch.directory / "end").touch()
    assert started.finish().code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_right_after_run_directory_exists(orch: Orch, number: signal.Signals) -> None:
    """The client may not know the run yet: it is still stopped in order, and the exit code names the signal."""
    started = orch.start("up", "--", *_SLEEPER)
    until(lambda: orch.run_dirs() or started.ended)
    started.signal(number)
    assert started.finish().code == 128 + number
    assert orch.result()["outcome"] == "stopped"


def test_run_stops_when_client_is_killed(orch: Orch) -> None:
    started = _up(orch, "--", *_STUBBORN)
    pids = orch.pids()
    started.signal(signal.SIGKILL)
    until_gone(*pids)
    assert orch.result()["exit_code"] == 143


def test_run_is_lost_when_supervisor_is_killed(orch: Orch) -> None:
    started = _up(orch, "--", *_SLEEPER)
    pids = orch.pids()
    supervisor = json.loads((orch.run_dir() / "run.json").read_text())["supervisor_pid"]
    os.kill(supervisor, signal.SIGKILL)
    done = started.finish()
    until_gone(*pids)
    assert done.code == 125
    assert "lost" in done.err and "Traceback" not in done.err
    assert orch.status()["run"]["state"] == "lost"
    assert orch("wait").code == 125
    assert orch("logs", "--no-prefix").out == "here\nhere\n"
    assert orch("down").code == 0
    assert orch.result()["outcome"] == "lost"
    assert orch("up", "-q", "--", "true").code == 0


def test_down_from_another_shell(orch: Orch) -> None:
    started = _up(orch, "--", *_SLEEPER)
    pids = orch.pids()
    down = orch("down")
    assert down.code == 0
    assert down.err == f"orch: {orch.run_dir().name}: stopped worker:0, worker:1; no process is left\n"
    assert not any(lives(pid) for pid in pids)
    done = started.finish()
    assert done.code == 143 and "stopped" in done.err
    again = orch("down")
    assert again.code == 0 and "was not running" in again.err


def test_down_with_force(orch: Orch) -> None:
    started = _up(orch, "--grace", "1h", "--", *_STUBBORN)
    down = orch("--json", "down", "--force")
    assert down.code == 0
    assert down.document == {
        "schema_version": 1,
        "run": orch.run_dir().name,
        "ended": ["worker:0", "worker:1"],
        "swept": 0,
        "left": [],
        "lost_hosts": [],
        "still_live": [],
    }
    assert started.finish().code == 143


def test_down_names_the_runs_that_are_still_live(orch: Orch) -> None:
    for _ in range(2):
        assert orch("up", "-q", "--wait", "ready", "--", *_SLEEPER).code == 0
    assert orch("up", "-q", "--wait", "ready", "--name", "other", "--", *_SLEEPER).code == 0
    here = [run.name for run in orch.run_dirs() if not run.name.startswith("other-")]
    (other,) = {run.name for run in orch.run_dirs()} - set(here)
    down = orch("down")
    assert down.err.splitlines() == [
        f"orch: stopping {other}, the newest of 3 live runs of this directory",
        f"orch: {other}: stopped worker:0; no process is left",
        f"orch: still live in this directory: {here[1]}, {here[0]}; `orch down --all` stops all",
    ]
    assert orch("down", "other", "--json").document["still_live"] == [here[1], here[0]]
    refused = orch("down", "--all", here[0])
    assert refused.code == 2 and f'leave out --all or "{here[0]}"' in refused.err
    stopped = orch("down", "--all", "--json").document
    assert [(run["run"], run["ended"]) for run in stopped["runs"]] == [
        (one, ["worker:0"]) for one in here[::-1]
    ]
    assert not any(orch.status(run)["run"]["state"] != "stopped" for run in here)
    again = orch("down", "--all")
    assert (again.code, again.err) == (0, "orch: no run here to stop\n")


def test_down_all_leaves_runs_of_other_directories(orch: Orch) -> None:
    elsewhere = orch.directory / "elsewhere"
    elsewhere.mkdir()
    assert orch("up", "-q", "--wait", "ready", "--name", "there", "--", *_SLEEPER, cwd=elsewhere).code == 0
    assert orch("up", "-q", "--wait", "ready", "--", *_SLEEPER).code == 0
    assert orch("down", "--all").code == 0
    assert [run["state"] for run in orch("ls", "--all", "--json").document["runs"]] == ["stopped", "running"]
    assert orch("down", "there").code == 0


def test_up_names_another_live_run_of_the_directory(orch: Orch) -> None:
    assert orch("up", "--wait", "ready", "--", *_SLEEPER).err == ""
    first = orch.run_dir().name
    second = orch("up", "--", "true")
    assert second.code == 0
    assert second.err.splitlines()[:2] == [
        f"orch: another run is live in this directory: {first}",
        f"orch: `orch status {first}` shows it, `orch up --replace` stops it first",
    ]
    assert "live" not in orch("up", "-q", "--", "true").err
    replacing = orch("up", "-d", "--replace", "--name", "other", "--", *_SLEEPER)
    assert (
        "`orch up --replace`" not in replacing.err and f"`orch down {orch.directory.name}`" in replacing.err
    )
    assert "2 other runs are live in this directory: `orch ls`" in orch("up", "--", "true").err
    assert f"orch: --replace: {first}: stopped worker:0" in orch("up", "--replace", "--", "true").err
    assert orch("down", "--all").code == 0


def test_timeout(orch: Orch) -> None:
    done = orch("up", "--timeout", "300ms", "--", *_SLEEPER)
    assert done.code == 124
    assert done.err.splitlines()[-1] == "orch: not done after 0.3 s (--timeout)"
    result = orch.result()
    assert (result["outcome"], result["exit_code"]) == ("timed_out", 124)
    assert result["cause"]["kind"] == "limit" and result["cause"]["task"] is None


def test_name_of_live_run_is_taken_or_replaced(orch: Orch) -> None:
    first = _up(orch, "--name", "mine", "--", *_SLEEPER, tasks=1)
    taken = orch("up", "--name", "mine", "--", "true")
    assert taken.code == 4
    assert "a live run is named 'mine'" in taken.err and "--replace" in taken.err
    assert len(orch.run_dirs()) == 1
    replacing = orch("up", "--name", "mine", "--replace", "--", "true")
    assert replacing.code == 0
    assert first.finish().code == 143
    assert orch("up", "--name", "mine", "--", "true").code == 0


def test_run_that_takes_the_name_while_another_is_replaced_is_named(orch: Orch) -> None:
    """A run that is just starting has the name, and cannot be stopped yet."""
    lock = lock_name("mine")
    assert lock is not None
    try:
        replacing = orch("up", "--name", "mine", "--replace", "--", "true")
    finally:
        lock.release()
    assert replacing.code == 4
    assert "another run took the name 'mine'" in replacing.err and "again" in replacing.err
    assert "stops it first" not in replacing.err


def test_two_live_runs_share_the_default_name(orch: Orch) -> None:
    first = _up(orch, "--", *_SLEEPER, tasks=1)
    second = _up(orch, "--", *_SLEEPER, tasks=1)
    ids = [run.name for run in orch.run_dirs()]
    assert len(ids) == 2
    assert orch("down", ids[1]).code == 0
    assert second.finish().code == 143
    assert first.process.poll() is None
    assert orch.status()["run"]["id"] == ids[0], "the newest live run"
    assert orch("down").code == 0
    assert first.finish().code == 143


def test_explicit_name_conflicts_with_default_name_of_live_run(orch: Orch) -> None:
    """Two live runs have the default name. After the first has ended, the second still has that name."""
    first = _up(orch, *_SLEEPER)
    second = _up(orch, *_SLEEPER)
    first.signal(signal.SIGTERM)
    assert first.finish().code == 143
    refused = orch("up", "--name", orch.directory.name, "--", "true")
    assert refused.code == 4 and "--replace" in refused.err
    second.signal(signal.SIGTERM)
    assert second.finish().code == 143


def test_client_leaves_suspended_supervisor(orch: Orch) -> None:
    """A supervisor stopped by SIGSTOP does not answer. Some time after two signals, a third makes the client exit."""
    client = _up(orch, *_SLEEPER)
    pid = json.loads((orch.run_dir() / "run.json").read_text())["supervisor_pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        # Stop, kill, leave, and once more, in case the second signal was handled late.
        for pause_s in (PATIENCE_S + 0.3, PATIENCE_S + 0.3, _LEAVES_WITHIN_S, _LEAVES_WITHIN_S):
            if not client.ended:
                client.signal(signal.SIGINT)
            later = time.monotonic() + pause_s
            until(lambda then=later: client.ended or time.monotonic() > then)
        until(lambda: client.ended)
    finally:
        os.kill(pid, signal.SIGCONT)
    done = client.finish()
    assert done.code == 125 and f"kill -CONT {pid}" in done.err
    assert orch.result()["outcome"] == "stopped"


def test_closed_output_during_stop_does_not_kill(orch: Orch) -> None:
    """`orch up | tee log`: Ctrl-C also ends tee, and the task still gets its grace period."""
    script = orch.script("saves.py", _SAVES_SLOWLY)
    reader, writer = os.pipe()
    client = subprocess.Popen(
        [ORCH, "up", "--grace", "60s", "--", sys.executable, "-u", script],
        cwd=orch.directory,
        env=orch.environ(),
        stdout=writer,
    )
    os.close(writer)
    with os.fdopen(reader, "rb") as out:
        assert any(b"here" in line for line in iter(out.readline, b""))
        client.send_signal(signal.SIGINT)
        assert any(b"saving" in line for line in iter(out.readline, b""))
    assert client.wait(60) == 130
    assert (orch.directory / "saved").exists()


def test_refused_checkpoint_directory_leaves_no_run(orch: Orch) -> None:
    (orch.directory / "link").symlink_to("/nonexistent/place")
    refused = orch("up", "--checkpoint-dir", "link", "--", "true")
    assert refused.code == 2 and "link" in refused.err
    assert orch.run_dirs() == []


def test_orch_on_pythonpath_is_isolated_from_user_modules(orch: Orch) -> None:
    """The processes of orch do not import the user's modules, but find orch where the client found it."""
    places = [str(Path(str(find_spec(name).origin)).parents[1]) for name in ("orchestrator", "pydantic")]
    (orch.directory / "json.py").write_text("raise SystemExit('the wrong json')")
    base = str(getattr(sys, "_base_executable", sys.executable))
    done = subprocess.run(
        [base, "-P", "-m", "orchestrator", "up", "-q", "--", "echo", "hello"],
        cwd=orch.directory,
        env=orch.environ({"PYTHONPATH": os.pathsep.join(places)}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "worker:0 | hello\n"), done.stderr


def test_processes_left_by_successful_task_are_killed_and_reported(orch: Orch) -> None:
    done = orch("up", "--", "sh", "-c", "trap '' TERM; setsid sleep 600 & echo done")
    assert done.code == 0 and done.lines == ["worker:0 | done"]
    assert "orch: killed 1 process that the tasks had left running" in done.err
