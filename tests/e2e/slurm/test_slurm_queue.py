"""Runs that wait for their nodes, in the foreground and detached, under a real Slurm on the pretend machines."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from hosts_run import is_whole
from orch_command import ORCH
from slurm import Slurm
from testbed import Testbed
from waiting import PATIENCE_S, until

_NODES = ("--engine", "slurm", "--nodes", "3", "--workers", "3")


@dataclass
class LoginNode:
    """Runs orch on n0. Its runs are in a directory that all machines share."""

    machines: Testbed
    slurm: Slurm
    project: Path

    @property
    def environ(self) -> dict[str, str]:
        return {**self.slurm.environ, "XDG_STATE_HOME": str(self.project / "state")}

    def orch(self, verb: str, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = (str(ORCH), verb, "--as-root-anyway", *words)
        return self.machines["n0"].run(*command, check=check, cwd=self.project, env=self.environ)

    def state(self) -> str:
        return str(self.status()["state"])

    def status(self) -> dict[str, Any]:
        document = json.loads(self.orch("status", "--json").stdout)
        assert isinstance(document["run"], dict)
        return document["run"]

    @property
    def directory(self) -> Path:
        (run,) = (self.project / "state/orch/runs").glob("[!.]*")
        return run

    def events(self, kind: str) -> list[dict[str, Any]]:
        *lines, _ = (self.directory / "events.jsonl").read_bytes().split(b"\n")
        return [event for event in map(json.loads, lines) if event["type"] == kind]

    def result(self) -> dict[str, Any]:
        """Wait for the run's result and an empty queue."""
        until((self.directory / "result.json").exists)
        until(lambda: not self.slurm.queue())
        document = json.loads((self.directory / "result.json").read_text())
        assert isinstance(document, dict)
        return document


@pytest.fixture
def login(slurm: Slurm, machines: Testbed, project: Path) -> Iterator[LoginNode]:
    node = LoginNode(machines, slurm, project)
    yield node
    node.orch("down", "--all", check=False)


@contextlib.contextmanager
def all_nodes_taken(slurm: Slurm, machines: Testbed) -> Iterator[None]:
    """Another job has all nodes during the block."""
    other = machines["n0"].start("srun", "--exclusive", "-N3", "sleep", "600", env=slurm.environ)
    try:
        until(lambda: [line.split()[1] for line in slurm.queue()] == ["RUNNING"])
        (job,) = slurm.queue()
        yield
    finally:
        machines["n0"].run("scancel", job.split()[0], env=slurm.environ)
        other.wait(PATIENCE_S)


def test_detached_run_waits_and_leaves_the_queue(
    login: LoginNode, machines: Testbed, slurm: Slurm, counting: tuple[str, ...]
) -> None:
    with all_nodes_taken(slurm, machines):
        run_id = login.orch("up", "-d", "--name", "test", *_NODES, *counting).stdout.strip()
        assert login.directory.name == run_id
        waits = login.status()
        assert (waits["state"], waits["queued"]["reason"]) == ("queued", "Resources")
        assert login.orch("up", "-d", "--name", "test", *_NODES, *counting, check=False).returncode == 4
        assert "stopped while it was queued" in login.orch("down").stderr
        assert len(slurm.queue()) == 1
    assert (login.result()["outcome"], login.result()["exit_code"]) == ("stopped", 143)


@pytest.mark.slow
def test_detached_run_is_reached_from_the_login_node(
    login: LoginNode, machines: Testbed, slurm: Slurm, counting: tuple[str, ...]
) -> None:
    run_id = login.orch("up", "-d", *_NODES, *counting).stdout.strip()
    until(lambda: len(login.events("task_ready")) == 3)
    running = login.status()
    # The clocks of the machines are days apart.
    assert 0 < running["uptime_s"] < 3600
    assert (running["id"], running["state"]) == (run_id, "running")
    assert "count.py" in login.orch("stacks").stdout
    # The supervisor is on n1. Here its socket would answer; on real machines only a step reaches it.
    assert f"HOST:{machines['n0'].address} " in (slurm.directory / "slurmd.n1.log").read_text()
    assert "stopped worker:0, worker:1, worker:2" in login.orch("down").stderr
    assert (login.result()["outcome"], login.result()["exit_code"]) == ("stopped", 143)
    assert all("line 1\n" in path.read_text() for path in (login.directory / "logs").glob("worker-*.log"))


def test_detached_run_ends_with_its_own_result(
    login: LoginNode, project: Path, counting: tuple[str, ...]
) -> None:
    (project / "end").touch()
    done = login.orch("up", "-d", "--wait", "done", *_NODES, "--env", "TOKEN=hidden", *counting)
    assert done.returncode == 0
    result = login.result()
    assert [task["host"] for task in result["tasks"]] == ["n1", "n2", "n3"]
    logs = login.directory / "logs"
    assert all(is_whole((logs / f"worker-{index}.log").read_text()) for index in range(3))
    files = [path for path in login.directory.rglob("*") if path.is_file()]
    assert not [path for path in files if b"hidden" in path.read_bytes()]
    assert not [path for path in files if path.stat().st_mode & 0o077]


def test_cancelled_job_is_the_reason_of_a_lost_run(
    login: LoginNode, machines: Testbed, slurm: Slurm, counting: tuple[str, ...]
) -> None:
    with all_nodes_taken(slurm, machines):
        login.orch("up", "-d", *_NODES, *counting)
        job = login.status()["queued"]["job"]
        machines["n0"].run("scancel", job, env=slurm.environ)
        until(lambda: login.state() == "lost")
        assert f"Slurm's job {job} was cancelled" in login.orch("status").stderr
        assert login.orch("wait", check=False).returncode == 125


def test_hosts_that_do_not_suffice_end_the_run(login: LoginNode, project: Path) -> None:
    login.orch("up", "-d", *_NODES, "--remote-python", "/no/python", "--", "true")
    result = login.result()
    assert (result["outcome"], result["exit_code"], result["cause"]["kind"]) == ("failed", 2, "refused")
    assert "/no/python" in result["cause"]["text"]


@pytest.mark.slow
def test_directory_that_the_nodes_do_not_have_is_named(
    login: LoginNode, machines: Testbed, slurm: Slurm
) -> None:
    home = {**slurm.environ}
    command = (str(ORCH), "up", "--as-root-anyway", "-d", *_NODES, "--", "true")
    machines["n0"].run(*command, cwd=login.project, env=home)
    until(lambda: not slurm.queue())
    shown = machines["n0"].run(str(ORCH), "status", "--as-root-anyway", cwd=login.project, env=home)
    assert "is not on the nodes of Slurm's job" in shown.stderr
    assert "lost" in shown.stdout
    machines["n0"].run("rm", "-rf", f"{machines.directory}/home/.local/state/orch")


@pytest.mark.parametrize(
    ("words", "environ", "text"),
    [
        (("--nodes", "5"), {}, "the partition does not have such nodes"),
        (("--nodes", "1", "--partition", "nope"), {}, "name one with --partition"),
        (("--nodes", "1"), {"SLURM_JOB_ID": "7"}, "in the allocation of Slurm's job 7"),
        (("--nodes", "1", "--slurm", "--nonsense"), {}, "Slurm refuses the allocation"),
    ],
)
def test_bad_detached_request_leaves_nothing(
    login: LoginNode, slurm: Slurm, words: tuple[str, ...], environ: dict[str, str], text: str
) -> None:
    command = (str(ORCH), "up", "--as-root-anyway", "-d", "--engine", "slurm", *words, "--", "true")
    done = login.machines["n0"].run(
        *command, check=False, cwd=login.project, env={**login.environ, **environ}
    )
    assert done.returncode == 2, done.stderr
    assert text in done.stderr
    assert not slurm.queue()
    assert not list((login.project / "state/orch/runs").glob("*"))


def test_foreground_run_is_queued_until_its_nodes_are_there(
    up: Any, slurm: Slurm, machines: Testbed, project: Path, counting: tuple[str, ...]
) -> None:
    (project / "end").touch()
    with all_nodes_taken(slurm, machines):
        run = up(*_NODES, *counting, hosts=None, env=slurm.environ)
        until(lambda: "is queued: Resources (Ctrl-C cancels it)" in run.text)
        status = machines["n0"].run(str(ORCH), "status", "--as-root-anyway", "--json", cwd=project)
        document = json.loads(status.stdout)["run"]
        assert (document["state"], document["queued"]["reason"]) == ("queued", "Resources")
        refused = machines["n0"].run(str(ORCH), "restart", "--as-root-anyway", cwd=project, check=False)
        assert "the run is queued" in refused.stderr
    assert run.finish()["outcome"] == "succeeded"
    assert re.search(r"Slurm's job \d+ has its nodes after \S+ in the queue", run.text)
    assert all(is_whole(run.log(f"worker:{index}")) for index in range(3))
    assert [len(run.events(kind)) for kind in ("job_started", "run_ended")] == [1, 1]


@pytest.mark.slow
def test_timeout_counts_from_the_allocation(
    up: Any, slurm: Slurm, machines: Testbed, counting: tuple[str, ...]
) -> None:
    limit_s = 3.0
    with all_nodes_taken(slurm, machines):
        run = up(*_NODES, "--timeout", f"{limit_s:g}s", *counting, hosts=None, env=slurm.environ)
        queued = run.until_event("job_queued")
        until(lambda: time.time() > queued["at"] + limit_s)
    result = run.finish()
    assert (result["outcome"], result["exit_code"]) == ("timed_out", 124)
    (started,), (stopped,) = run.events("job_started"), run.events("stop_requested")
    assert stopped["at"] - started["at"] >= limit_s


@pytest.mark.slow
@pytest.mark.parametrize("how", ["to the end", "leave"])
def test_detached_run_is_attached_to_from_the_login_node(
    login: LoginNode, machines: Testbed, project: Path, counting: tuple[str, ...], how: str
) -> None:
    login.orch("up", "-d", *_NODES, *counting)
    shown = project / "shown"
    command = ("env", "-C", str(project), str(ORCH), "attach")
    with shown.open("wb") as out:
        attach = machines["n0"].start(*command, env=login.environ, stdout=out, stderr=out)
    until(lambda: all(f"worker:{index} | line " in shown.read_text() for index in range(3)))
    if how == "leave":
        for process in machines["n0"].processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "attach" in process.cmdline():
                    process.send_signal(signal.SIGINT)
        attach.wait(PATIENCE_S)
        assert login.state() == "running"
    (project / "end").touch()
    assert login.result()["outcome"] == "succeeded"
    if how == "to the end":
        assert attach.wait(PATIENCE_S) == 0
        assert all(f"worker:{index} | last " in shown.read_text() for index in range(3))


@pytest.mark.parametrize("how", ["down", "interrupt", "hang up"])
def test_queued_run_in_the_foreground_is_stopped(
    up: Any, slurm: Slurm, machines: Testbed, project: Path, how: str
) -> None:
    with all_nodes_taken(slurm, machines):
        run = up(*_NODES, "--", "true", hosts=None, env=slurm.environ)
        until(lambda: "is queued: " in run.text)
        if how == "down":
            machines["n0"].run(str(ORCH), "down", "--as-root-anyway", cwd=project)
        else:
            number = signal.SIGINT if how == "interrupt" else signal.SIGHUP
            for process in machines["n0"].processes():
                with contextlib.suppress(psutil.NoSuchProcess):  # one that ends now
                    if "bin/orch up" in " ".join(process.cmdline()):
                        process.send_signal(number)
        result = run.finish()
        assert (result["outcome"], result["exit_code"]) == ("stopped", 130 if how == "interrupt" else 143)
        until(lambda: len(slurm.queue()) == 1)
