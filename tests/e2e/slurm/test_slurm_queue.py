"""Runs that wait for their nodes, in the foreground and detached, under a real Slurm on the pretend machines."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from hosts_run import HostsRun, is_whole
from login_node import NODES, LoginNode, all_nodes_taken
from orch_command import ORCH, read_document
from slurm import Slurm
from testbed import Testbed
from waiting import PATIENCE_S, until


def test_queued_detached_run_leaves_the_queue_when_it_is_stopped_or_cancelled(
    login: LoginNode, slurm: Slurm, counting: tuple[str, ...]
) -> None:
    with all_nodes_taken(slurm) as other:
        stopped = login.orch("up", "-d", "--name", "test", *NODES, *counting).out.strip()
        assert login.directory.name == stopped
        waits = login.status()
        assert (waits["state"], waits["queued"]["reason"]) == ("queued", "Resources")
        login.orch("up", "-d", "--name", "test", *NODES, *counting, code=4)
        assert "stopped while it was queued" in login.orch("down").err
        assert slurm.job() == other
        result = login.result(login.runs / stopped)
        assert (result["outcome"], result["exit_code"]) == ("stopped", 143)

        options = ("--slurm", "--comment=mine", *NODES)
        cancelled = login.orch("up", "-d", *options, *counting).out.strip()
        job = login.status(cancelled)["queued"]["job"]
        assert slurm.comment(job).startswith("mine orch:")
        slurm.run("scancel", job)
        until(lambda: login.status(cancelled)["state"] == "lost")
        assert f"Slurm's job {job} was cancelled" in login.orch("status", cancelled).err
        login.orch("wait", cancelled, code=125)


def test_prepared_run_directory_cancels_no_other_job(
    login: LoginNode, slurm: Slurm, counting: tuple[str, ...]
) -> None:
    """Its record names a job that another run of this user waits for, and all that others can know about it."""
    words = ("sbatch", "--parsable", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    with all_nodes_taken(slurm) as taken:
        prepared = login.orch("up", "-d", *NODES, *counting).out.strip()
        own = login.status(prepared)["queued"]["job"]
        comment = slurm.comment(own)
        slurm.run("scancel", own)
        other = slurm.run(*words, f"--comment={comment} x", f"--job-name=orch-{login.project.name}")
        document = read_document(login.directory / "run.json")
        for mark, said in (
            ("", f"which orch did not submit; `scancel {other}` ends it"),
            ("0" * 32, "was not running"),
            (comment.partition(":")[2], "was not"),
        ):
            changed = {**document, "job": other, "job_mark": mark}
            (login.directory / "run.json").write_text(json.dumps(changed))
            done = login.orch("down", prepared, code=None)
            assert [line.split()[0] for line in slurm.queue()] == [other, taken]
            assert said in done.err
        slurm.run("scancel", other)


def test_detached_run_ends_with_its_own_result(
    login: LoginNode, project: Path, counting: tuple[str, ...]
) -> None:
    (project / "end").touch()
    login.orch("up", "-d", "--wait", "done", *NODES, "--env", "TOKEN=hidden", *counting)
    result = login.result()
    assert [task["host"] for task in result["tasks"]] == ["n1", "n2", "n3"]
    logs = login.directory / "logs"
    assert all(is_whole((logs / f"worker-{index}.log").read_text()) for index in range(3))
    files = [path for path in login.directory.rglob("*") if path.is_file()]
    assert not [path for path in files if b"hidden" in path.read_bytes()]
    assert not [path for path in files if path.stat().st_mode & 0o077]


@pytest.mark.slow
def test_detached_run_is_reached_from_the_login_node(
    login: LoginNode, machines: Testbed, slurm: Slurm, counting: tuple[str, ...]
) -> None:
    """It outlives an `orch attach` that is interrupted. Another one shows the end."""
    shown = login.project / "shown"

    def attach() -> subprocess.Popen[bytes]:
        words = ("env", "-C", str(login.project), str(ORCH), "attach")
        with shown.open("wb") as out:
            attached = machines["n0"].start(*words, env=login.environ, stdout=out, stderr=out)
        until(lambda: shows("line"))
        return attached

    def shows(text: str) -> bool:
        return all(f"worker:{index} | {text} " in shown.read_text() for index in range(3))

    run_id = login.orch("up", "-d", *NODES, *counting).out.strip()
    until(lambda: len(login.events("task_ready")) == 3)
    left = attach()
    signal_orch(machines, "attach", signal.SIGINT)
    left.wait(PATIENCE_S)
    running = login.status()
    # The clocks of the machines are days apart.
    assert 0 < running["uptime_s"] < 3600
    assert (running["id"], running["state"]) == (run_id, "running")
    assert "count.py" in login.orch("stacks").out
    # The supervisor is on n1. Here its socket would answer; on real machines only a step reaches it.
    assert f"HOST:{machines['n0'].address} " in (slurm.directory / "slurmd.n1.log").read_text()
    stays = attach()
    (login.project / "end").touch()
    assert stays.wait(PATIENCE_S) == 0
    assert shows("last")
    assert login.result()["outcome"] == "succeeded"


@pytest.mark.slow
def test_detached_run_that_cannot_start_says_why(login: LoginNode, machines: Testbed, slurm: Slurm) -> None:
    """Hosts do not suffice, or the nodes do not have its directory."""
    login.orch("up", "-d", *NODES, "--remote-python", "/no/python", "--", "true")
    result = login.result()
    assert (result["outcome"], result["exit_code"], result["cause"]["kind"]) == ("failed", 2, "refused")
    assert "/no/python" in result["cause"]["text"]
    until(lambda: not slurm.queue())

    def on_n0(*words: str) -> str:
        command = (str(ORCH), *words[:1], "--as-root-anyway", *words[1:])
        done = machines["n0"].run(*command, cwd=login.project, env=slurm.environ)
        return done.stdout + done.stderr

    on_n0("up", "-d", *NODES, "--", "true")
    until(lambda: not slurm.queue())
    shown = on_n0("status")
    assert "is not on the nodes of Slurm's job" in shown and "lost" in shown


def test_foreground_run_is_queued_until_its_nodes_are_there(
    start: Callable[..., HostsRun], slurm: Slurm, project: Path, counting: tuple[str, ...]
) -> None:
    """It has then left the queue for good: a restart of Slurm's controller changes nothing."""
    with all_nodes_taken(slurm):
        run = start(*counting)
        until(lambda: "is queued: Resources (Ctrl-C cancels it)" in run.text)
        document = json.loads(run.orch("status", "--json").stdout)["run"]
        assert (document["state"], document["queued"]["reason"]) == ("queued", "Resources")
        assert "is queued, and no task has started" in run.orch("restart", check=False).stderr
    run.until_event("task_started", 3)
    slurm.restart_controller()
    (project / "end").touch()
    result = run.finish()
    assert result["outcome"] == "succeeded"
    assert [task["host"] for task in result["tasks"]] == ["n1", "n2", "n3"]
    assert re.search(r"Slurm's job \d+ has its nodes after \S+ in the queue", run.text)
    assert all(is_whole(run.log(f"worker:{index}")) for index in range(3))
    assert [len(run.events(kind)) for kind in ("job_started", "run_ended")] == [1, 1]


@pytest.mark.slow
def test_timeout_counts_from_the_allocation(
    start: Callable[..., HostsRun], slurm: Slurm, counting: tuple[str, ...]
) -> None:
    limit_s = 3.0
    with all_nodes_taken(slurm):
        run = start("--timeout", f"{limit_s:g}s", *counting)
        until(lambda: "is queued: Resources" in run.text)
        time.sleep(limit_s)
    result = run.finish()
    assert (result["outcome"], result["exit_code"]) == ("timed_out", 124)
    (began,), (stopped,) = run.events("job_started"), run.events("stop_requested")
    assert stopped["at"] - began["at"] >= limit_s


@pytest.mark.slow
def test_queued_run_in_the_foreground_is_stopped(
    start: Callable[..., HostsRun], slurm: Slurm, machines: Testbed
) -> None:
    codes = {"down": 143, "scancel": 2, "interrupt": 130, "hang up": 143}
    with all_nodes_taken(slurm) as other:
        for how, code in codes.items():
            run = start("--", "true")
            until(lambda run=run: "is queued: " in run.text)
            (job,) = {line.split()[0] for line in slurm.queue()} - {other}
            match how:
                case "scancel":
                    slurm.run("scancel", job)
                case "down":
                    run.orch("down")
                case _:
                    signal_orch(machines, "up", signal.SIGINT if how == "interrupt" else signal.SIGHUP)
            result = run.finish()
            assert result["exit_code"] == code, how
            if how == "scancel":
                assert f"Slurm's job {job} was cancelled while it was queued" in result["cause"]["text"]
            else:
                assert result["outcome"] == "stopped", how
            until(lambda: slurm.job() == other)
            run.forget()  # each run is the only one


def signal_orch(machines: Testbed, verb: str, number: int) -> None:
    """Send a signal to `orch VERB` on n0."""
    for process in machines["n0"].processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # one that ends now
            if f"bin/orch {verb}" in " ".join(process.cmdline()):
                process.send_signal(number)
