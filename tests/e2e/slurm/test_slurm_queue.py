"""Runs that wait for their nodes, in the foreground and detached, under a real Slurm on the pretend machines."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from hosts_run import is_whole
from login_node import NODES, LoginNode, all_nodes_taken
from orch_command import ORCH, read_document
from slurm import Slurm
from testbed import Testbed
from waiting import PATIENCE_S, until


def test_queued_detached_run_leaves_the_queue_when_it_is_stopped_or_cancelled(
    login: LoginNode, machines: Testbed, slurm: Slurm, counting: tuple[str, ...]
) -> None:
    with all_nodes_taken(slurm) as other:
        stopped = login.orch("up", "-d", "--name", "test", *NODES, *counting).stdout.strip()
        assert login.directory.name == stopped
        waits = login.status()
        assert (waits["state"], waits["queued"]["reason"]) == ("queued", "Resources")
        assert login.orch("up", "-d", "--name", "test", *NODES, *counting, check=False).returncode == 4
        assert "stopped while it was queued" in login.orch("down").stderr
        assert [line.split()[0] for line in slurm.queue()] == [other]
        result = login.result(login.runs / stopped)
        assert (result["outcome"], result["exit_code"]) == ("stopped", 143)

        options = ("--slurm", "--comment=mine", *NODES)
        cancelled = login.orch("up", "-d", *options, *counting).stdout.strip()
        job = login.status(cancelled)["queued"]["job"]
        comment = machines["n0"].run("squeue", "-h", "-j", job, "-o", "%k", env=slurm.environ).stdout
        assert comment.startswith("mine orch:")
        machines["n0"].run("scancel", job, env=slurm.environ)
        until(lambda: login.status(cancelled)["state"] == "lost")
        assert f"Slurm's job {job} was cancelled" in login.orch("status", cancelled).stderr
        assert login.orch("wait", cancelled, check=False).returncode == 125


def test_prepared_run_directory_cancels_no_other_job(
    login: LoginNode, machines: Testbed, slurm: Slurm, counting: tuple[str, ...]
) -> None:
    """Its record names a job that another run of this user waits for, and all that others can know about it."""
    words = ("sbatch", "--parsable", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    with all_nodes_taken(slurm) as taken:
        prepared = login.orch("up", "-d", *NODES, *counting).stdout.strip()
        own = login.status(prepared)["queued"]["job"]
        comment = machines["n0"].run("squeue", "-h", "-j", own, "-o", "%k", env=slurm.environ).stdout.strip()
        machines["n0"].run("scancel", own, env=slurm.environ)
        sent = machines["n0"].run(
            *words, f"--comment={comment} x", f"--job-name=orch-{login.project.name}", env=slurm.environ
        )
        other = sent.stdout.strip()
        document = read_document(login.directory / "run.json")
        refused = f"which orch did not submit; `scancel {other}` ends it"
        for mark, said in (
            ("", refused),
            ("0" * 32, "was not running"),
            (comment.partition(":")[2], "was not"),
        ):
            changed = {**document, "job": other, "job_mark": mark}
            (login.directory / "run.json").write_text(json.dumps(changed))
            done = login.orch("down", prepared, check=False)
            assert [line.split()[0] for line in slurm.queue()] == [other, taken]
            assert said in done.stderr
        machines["n0"].run("scancel", other, env=slurm.environ)


@pytest.mark.slow
def test_detached_run_is_reached_from_the_login_node(
    login: LoginNode, machines: Testbed, slurm: Slurm, counting: tuple[str, ...]
) -> None:
    run_id = login.orch("up", "-d", *NODES, *counting).stdout.strip()
    until(lambda: len(login.events("task_ready")) == 3)
    running = login.status()
    # The clocks of the machines are days apart.
    assert 0 < running["uptime_s"] < 3600
    assert (running["id"], running["state"]) == (run_id, "running")
    assert "count.py" in login.orch("stacks").stdout
    # The supervisor is on n1. Here its socket would answer; on real machines only a step reaches it.
    assert f"HOST:{machines['n0'].address} " in (slurm.directory / "slurmd.n1.log").read_text()
    assert "stopped worker:0, worker:1, worker:2" in login.orch("down").stderr
    result = login.result()
    assert (result["outcome"], result["exit_code"]) == ("stopped", 143)
    assert all("line 1\n" in path.read_text() for path in (login.directory / "logs").glob("worker-*.log"))


def test_detached_run_ends_with_its_own_result(
    login: LoginNode, project: Path, counting: tuple[str, ...]
) -> None:
    (project / "end").touch()
    done = login.orch("up", "-d", "--wait", "done", *NODES, "--env", "TOKEN=hidden", *counting)
    assert done.returncode == 0
    result = login.result()
    assert [task["host"] for task in result["tasks"]] == ["n1", "n2", "n3"]
    logs = login.directory / "logs"
    assert all(is_whole((logs / f"worker-{index}.log").read_text()) for index in range(3))
    files = [path for path in login.directory.rglob("*") if path.is_file()]
    assert not [path for path in files if b"hidden" in path.read_bytes()]
    assert not [path for path in files if path.stat().st_mode & 0o077]


@pytest.mark.slow
def test_hosts_that_do_not_suffice_end_the_run(login: LoginNode, project: Path) -> None:
    login.orch("up", "-d", *NODES, "--remote-python", "/no/python", "--", "true")
    result = login.result()
    assert (result["outcome"], result["exit_code"], result["cause"]["kind"]) == ("failed", 2, "refused")
    assert "/no/python" in result["cause"]["text"]


@pytest.mark.slow
def test_directory_that_the_nodes_do_not_have_is_named(
    login: LoginNode, machines: Testbed, slurm: Slurm
) -> None:
    home = {**slurm.environ}
    command = (str(ORCH), "up", "--as-root-anyway", "-d", *NODES, "--", "true")
    machines["n0"].run(*command, cwd=login.project, env=home)
    until(lambda: not slurm.queue())
    shown = machines["n0"].run(str(ORCH), "status", "--as-root-anyway", cwd=login.project, env=home)
    assert "is not on the nodes of Slurm's job" in shown.stderr
    assert "lost" in shown.stdout
    machines["n0"].run("rm", "-rf", f"{machines.directory}/home/.local/state/orch")


def test_foreground_run_is_queued_until_its_nodes_are_there(
    up: Any, slurm: Slurm, machines: Testbed, project: Path, counting: tuple[str, ...]
) -> None:
    """It has then left the queue for good: a restart of Slurm's controller changes nothing."""
    with all_nodes_taken(slurm):
        run = up(*NODES, *counting, hosts=None, env=slurm.environ)
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
    up: Any, slurm: Slurm, machines: Testbed, counting: tuple[str, ...]
) -> None:
    limit_s = 3.0
    with all_nodes_taken(slurm):
        run = up(*NODES, "--timeout", f"{limit_s:g}s", *counting, hosts=None, env=slurm.environ)
        until(lambda: "is queued: Resources" in run.text)
        began = time.time()
        until(lambda: time.time() > began + limit_s)
    result = run.finish()
    assert (result["outcome"], result["exit_code"]) == ("timed_out", 124)
    (started,), (stopped,) = run.events("job_started"), run.events("stop_requested")
    assert stopped["at"] - started["at"] >= limit_s


@pytest.mark.slow
@pytest.mark.parametrize("how", ["to the end", "leave"])
def test_detached_run_is_attached_to_from_the_login_node(
    login: LoginNode, machines: Testbed, project: Path, counting: tuple[str, ...], how: str
) -> None:
    login.orch("up", "-d", *NODES, *counting)
    shown = project / "shown"
    command = ("env", "-C", str(project), str(ORCH), "attach")
    with shown.open("wb") as out:
        attach = machines["n0"].start(*command, env=login.environ, stdout=out, stderr=out)
    until(lambda: all(f"worker:{index} | line " in shown.read_text() for index in range(3)))
    if how == "leave":
        signal_orch(machines, "attach", signal.SIGINT)
        attach.wait(PATIENCE_S)
        assert login.status()["state"] == "running"
    (project / "end").touch()
    assert login.result()["outcome"] == "succeeded"
    if how == "to the end":
        assert attach.wait(PATIENCE_S) == 0
        assert all(f"worker:{index} | last " in shown.read_text() for index in range(3))


@pytest.mark.slow
def test_queued_run_in_the_foreground_is_stopped(
    up: Any, slurm: Slurm, machines: Testbed, project: Path
) -> None:
    numbers = {"down": None, "scancel": None, "interrupt": signal.SIGINT, "hang up": signal.SIGHUP}
    with all_nodes_taken(slurm) as other:
        for how, number in numbers.items():
            run = up(*NODES, "--", "true", hosts=None, env=slurm.environ)
            until(lambda run=run: "is queued: " in run.text)
            if how == "scancel":
                (job,) = {line.split()[0] for line in slurm.queue()} - {other}
                machines["n0"].run("scancel", job, env=slurm.environ)
            elif how == "down":
                run.orch("down")
            else:
                signal_orch(machines, "up", number)
            result = run.finish()
            if how == "scancel":
                assert f"Slurm's job {job} was cancelled while it was queued" in result["cause"]["text"]
                assert result["exit_code"] == 2
            else:
                code = 130 if how == "interrupt" else 143
                assert (result["outcome"], result["exit_code"]) == ("stopped", code), how
            until(lambda: [line.split()[0] for line in slurm.queue()] == [other])
            # Each run is the only one.
            machines["n0"].run("rm", "-rf", str(run.state))


def signal_orch(machines: Testbed, verb: str, number: int) -> None:
    """Send a signal to `orch VERB` on n0."""
    for process in machines["n0"].processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # one that ends now
            if f"bin/orch {verb}" in " ".join(process.cmdline()):
                process.send_signal(number)
