"""How `orch up` ends, waits or goes on in the background when signals and other commands interfere.

Which end each fault leads to is in the matrix (tests/e2e/local/faults)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
from orch_command import Orch
from waiting import PATIENCE_S, lives, until, until_gone

from orchestrator.cli.early import early_supervisor, supervisor_of_up

_FAILS = ("up", "-n", "2", "--", "sh", "-c", "exit 3")
_SLEEPER = ("sh", "-c", "echo here; exec sleep 600")
# For the user's sitecustomize: an object that the interpreter destroys last, and slowly.
_LASTS = """
import os
class Lasting:
    def __del__(self, open=os.open, read=os.read, close=os.close, flags=os.O_RDONLY, path={path!r}):
        fd = open(path, flags)
        read(fd, 1)
        close(fd)
lasting = Lasting()
"""
_HANGS = """
import threading, os, time

def load_data():
    time.sleep(600)

if os.environ["ORCH_TASK"] == "worker:1":
    load_data()
threading.Event().wait()
"""
# worker:0 saves after SIGTERM, as PreemptionCheckpointHandler does. worker:1 sets no handler, worker:2 ignores it.
_NOTICED = """
import os, pathlib, signal, sys, time

def save(*_):
    pathlib.Path("saved").touch()
    sys.exit(42)

task = os.environ["ORCH_TASK"]
if task != "worker:1":
    signal.signal(signal.SIGTERM, save if task == "worker:0" else signal.SIG_IGN)
try:
    print("up")
    while True:
        time.sleep(0.05)
finally:
    print("cleaned up")
"""


def test_run_under_nohup_ignores_sighup(orch: Orch) -> None:
    command = "echo here; until [ -e go ]; do sleep 0.1; done; echo on; until [ -e end ]; do sleep 0.1; done"
    started = orch.start("up", "--", "sh", "-c", command, before=("nohup",))
    started.until_out("| here\n")
    started.signal(signal.SIGHUP)
    (orch.directory / "go").touch()
    started.until_out("| on\n")  # shown by a client that has received its signal
    (orch.directory / "end").touch()
    assert started.finish().code == 0


def test_verbs_of_a_lost_run(orch: Orch) -> None:
    started = orch.start("up", "-n", "2", "--", *_SLEEPER)
    started.until_out("| here\n", 2)
    pids = orch.pids()
    os.kill(until(orch.supervisor), signal.SIGKILL)
    done = started.finish()
    until_gone(*pids)
    assert done.code == 125 and "lost" in done.err and "Traceback" not in done.err
    assert orch.status()["run"]["state"] == "lost"
    assert orch("wait").code == 125
    assert orch("logs", "--no-prefix").out == "here\nhere\n"
    assert orch("down").code == 0
    assert orch.result()["outcome"] == "lost"
    assert orch("up", "-q", "--", "true").code == 0


def test_client_leaves_suspended_supervisor(orch: Orch) -> None:
    """The second signal makes the client exit, and name the supervisor that SIGSTOP has stopped."""
    client = orch.start("up", "--", *_SLEEPER)
    client.until_out("| here\n")
    pid = until(orch.supervisor)
    os.kill(pid, signal.SIGSTOP)
    try:
        client.signal(signal.SIGINT)
        time.sleep(1.0)  # two signals at once could be one
        assert not client.ended
        client.signal(signal.SIGINT)
        until(lambda: client.ended)
    finally:
        os.kill(pid, signal.SIGCONT)
    done = client.finish()
    assert done.code == 125 and f"kill -CONT {pid}" in done.err
    assert orch.result()["outcome"] == "stopped"


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
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "worker:0 | hello\n"), done.stderr


def test_processes_left_by_successful_task_are_killed_and_reported(orch: Orch) -> None:
    done = orch("up", "--", "sh", "-c", "trap '' TERM; setsid sleep 600 & echo done")
    assert done.code == 0 and done.lines == ["worker:0 | done"]
    assert "orch: killed 1 process that the tasks had left running" in done.err


def test_signal_after_report_does_not_change_exit_code(orch: Orch, tmp_path: Path) -> None:
    """Also while the interpreter exits, which removes the signal handlers first."""
    door = tmp_path / "door"
    os.mkfifo(door)
    (tmp_path / "sitecustomize.py").write_text(_LASTS.format(path=str(door)))
    started = orch.start(*_FAILS, env={"PYTHONPATH": str(tmp_path)})
    with door.open("wb", buffering=0) as opened:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            started.signal(number)
        opened.write(b"\n")
    done = started.finish()
    assert done.code == 3
    assert done.err.splitlines()[-1].startswith("orch: worker:")


def test_caller_in_the_same_process_keeps_its_signal_handlers(orch: Orch) -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    assert orch.within(*_FAILS).code == 3
    assert [signal.getsignal(number) for number in numbers] == before


# -- down, names and --replace


def test_runs_of_one_directory(orch: Orch) -> None:
    """Which of them `down` stops, and what it says of the others; two live runs may share the default name."""
    wait = ("up", "-q", "--wait", "ready")
    for _ in range(2):
        assert orch(*wait, "--", *_SLEEPER).code == 0
    assert orch(*wait, "--name", "other", "--", *_SLEEPER).code == 0
    elsewhere = orch.directory / "elsewhere"
    elsewhere.mkdir()
    assert orch(*wait, "--name", "there", "--", *_SLEEPER, cwd=elsewhere).code == 0
    first, second, other, there = (run.name for run in orch.run_dirs())
    down = orch("down")
    assert (down.code, down.err.splitlines()) == (
        0,
        [
            f"orch: stopping {other}, the newest of 3 live runs of this directory",
            f"orch: {other}: stopped worker:0; no process is left",
            f"orch: still live in this directory: {second}, {first}; `orch down --all` stops all",
        ],
    )
    again = orch("down", "other", "--json")
    assert (again.document["ended"], again.document["still_live"]) == ([], [second, first])
    refused = orch("down", "--all", first)
    assert refused.code == 2 and f'leave out --all or "{first}"' in refused.err
    taken = orch("up", "--name", orch.directory.name, "--", "true")
    assert taken.code == 4 and f"a live run is named '{orch.directory.name}'" in taken.err
    stopped = orch("down", "--all", "--json").document
    assert [(run["run"], run["ended"]) for run in stopped["runs"]] == [
        (run, ["worker:0"]) for run in (second, first)
    ]
    states = {run: orch.status(run)["run"]["state"] for run in (first, second, there)}
    assert states == {first: "stopped", second: "stopped", there: "running"}
    none = orch("down", "--all")
    assert (none.code, none.err) == (0, "orch: no run here to stop\n")
    assert orch("--json", "down", "--force", "there").document == {
        "schema_version": 1,
        "run": there,
        "ended": ["worker:0"],
        "swept": 0,
        "left": [],
        "lost_hosts": [],
        "still_live": [],
    }


def test_up_names_other_live_runs_of_the_directory_and_replaces_one(orch: Orch) -> None:
    assert orch("up", "--wait", "ready", "--", *_SLEEPER).err == ""
    first, name = orch.run_dir().name, orch.directory.name
    second = orch("up", "--", "true")
    assert second.code == 0
    assert second.err.splitlines()[:2] == [
        f"orch: another run is live in this directory: {first}",
        f"orch: `orch status {first}` shows it, `orch up --replace` stops it first",
    ]
    assert "live" not in orch("up", "-q", "--", "true").err
    runs = len(orch.run_dirs())
    taken = orch("up", "--name", name, "--", "true")
    assert taken.code == 4 and f"a live run is named '{name}'" in taken.err and "--replace" in taken.err
    assert len(orch.run_dirs()) == runs
    replacing = orch("up", "-d", "--replace", "--name", "other", "--", *_SLEEPER)
    assert "`orch up --replace`" not in replacing.err and f"`orch down {name}`" in replacing.err
    assert "2 other runs are live in this directory: `orch ls`" in orch("up", "--", "true").err
    replaced = orch("up", "--replace", "--", "true")
    assert replaced.code == 0 and f"orch: --replace: {first}: stopped worker:0" in replaced.err
    assert orch.result(orch.state / "orch/runs" / first)["exit_code"] == 143
    assert orch("down", "--all").code == 0


# -- runs in the background


def test_detached_run_prints_its_id_and_continues_until_it_is_stopped(orch: Orch) -> None:
    done = orch("up", "-dq", "-n", "2", "--", *_SLEEPER)
    run = orch.run_dir().name
    assert (done.code, done.lines, done.err) == (0, [run], "")
    until(lambda: orch.status()["run"]["state"] == "running")
    first = orch.pids()
    assert orch("restart").code == 0
    until(lambda: orch.status()["run"]["attempt"] == 2 and orch.status()["run"]["state"] == "running")
    pids = orch.pids()
    assert not {*first} & {*pids} and orch.status()["run"]["most_attempts"] is None
    assert orch("down").err == f"orch: {run}: stopped worker:0, worker:1; no process is left\n"
    assert not any(lives(pid) for pid in pids)
    assert orch.status()["run"]["state"] == "stopped"
    again = orch("down")
    assert again.code == 0 and "was not running" in again.err


def test_waiting_for_a_run_returns_its_exit_code(orch: Orch) -> None:
    serves = orch.script("serves.py", "import sys\nsys.exit(5)\nimport tensorflow\n")
    ready = orch("up", "--wait", "ready", "--start", "spawn", "--", serves)
    assert ready.code == 5 and "orch: worker:0 failed: exit 5" in ready.err
    assert orch("up", "--wait", "done", "--", "true").code == 0
    failed = orch("up", "--wait", "done", "--json", "--", "sh", "-c", "exit 9")
    assert failed.code == 9 and failed.document["cause"]["text"] == "exit 9"


def test_interrupted_wait_leaves_the_run(orch: Orch) -> None:
    waiting = orch.start("up", "--wait", "done", "--", *_SLEEPER)
    waiting.until_out("\n")
    waiting.signal(signal.SIGINT)
    done = waiting.finish()
    assert done.code == 130 and "keeps running" in done.err
    until(lambda: orch.status()["run"]["state"] == "running")


def test_stacks_recorded_by_a_limit_are_shown(orch: Orch) -> None:
    """After the run, the stacks of all tasks and of one task are shown."""
    done = orch.run("-q", "-n", "2", "--stall-timeout", "6s", script=_HANGS)
    assert done.code == 124, done.err
    recorded = done.result["stacks"]
    assert set(recorded) == {"worker:0", "worker:1"}
    shown = orch("stacks")
    assert shown.code == 0
    assert "has ended; these are its tasks when its time limit was reached" in shown.err
    assert "worker:1: in load_data (train.py:5)" in shown.lines
    document = {"schema_version": 1, "run": done.run.name, "live": False, "silent": []}
    assert orch("stacks", "1", "--json").document == document | {"stacks": {"worker:1": recorded["worker:1"]}}

    # Only the run's own file is read, whatever path the result names.
    secret = orch.directory / "id_rsa"
    secret.write_text("hunter2" * 1000)
    path = done.run / "result.json"
    path.write_text(path.read_text().replace(recorded["worker:1"]["file"], str(secret)))
    whole = orch("stacks", "--full", "1").out
    assert "in load_data" in whole and "hunter2" not in whole


# -- preemption notices: tasks are asked to save their state, and the run ends with exit code 42


def test_notice_lets_tasks_save_clean_up_and_kills_those_that_ignore_it(orch: Orch) -> None:
    command = orch.start("up", "-n", "3", "--on-failure", "restart", "--", orch.script("tasks.py", _NOTICED))
    command.until_out("| up", 3)
    done = orch("notice", "--in", "3s")
    assert done.code == 0 and "within 3s" in done.err, done.err
    ended = command.finish()
    assert ended.code == 42, ended.err
    assert (orch.directory / "saved").exists() and "worker:1 | cleaned up" in ended.out
    assert ended.err.splitlines()[-1] == (
        "orch: its machines go in 3s (`orch notice`); 1 of 3 tasks said that the state is saved (exit 42)"
    )
    result = orch.result()
    assert (result["outcome"], result["cause"]["kind"], result["attempts"]) == ("stopped", "notice", 1)
    assert [(task["exit_code"], task["signal"]) for task in result["tasks"]] == [
        *((42, None), (143, None)),
        (None, signal.SIGKILL),
    ]
    assert orch("notice").code == 3


def test_sigusr2_is_a_notice(orch: Orch) -> None:
    script = orch.script("tasks.py", _NOTICED)
    for who in ("orch up", "supervisor"):
        command = orch.start("up", "--notice", "5m", "--", script)
        command.until_out("up")
        os.kill(command.process.pid if who == "orch up" else orch.supervisor() or 0, signal.SIGUSR2)
        ended = command.finish()
        assert ended.code == 42, ended.err
        assert "its machines go in 5m (SIGUSR2)" in ended.err, who


# -- requests that start no run


def test_supervisor_starts_before_the_words_are_parsed_and_is_killed_if_they_are_refused(orch: Orch) -> None:
    """`nothing_left` would find it."""
    done = orch.start("up", "--frobnicate", cold=True).finish()
    assert (done.code, done.out) == (2, "") and "No such option: --frobnicate" in done.err
    with early_supervisor(("up", "--frobnicate", "--", "train.py", "--help")):
        supervisor = supervisor_of_up()
        assert supervisor is not None and not supervisor.has_left()
    assert supervisor.wait(0)

    before = {*psutil.Process().children()}
    for words in ("", "ls", "up --help", "up -n 2 -h -- train.py", "up --dry-run -- true"):
        with early_supervisor(words.split()):
            assert {*psutil.Process().children()} <= before, words
