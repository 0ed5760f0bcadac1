"""Runs on three pretend machines with a real ssh: outcomes as on one machine, and nothing is left on any of them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hosts_run import HOSTS, LOST, cut_host, is_whole, kill_victim
from orch_command import ORCH
from testbed import Testbed
from waiting import PATIENCE_S, until

from orchestrator.core.lifecycle.restarts import RAN_AT_LEAST_S
from orchestrator.host.headroom import files_with_hosts

CUTS = ("both", *(pytest.param(cut, marks=pytest.mark.slow) for cut in ("to the host", "from the host")))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_machines_train_with_the_losses_of_one(up: Any, machines: Testbed, project: Path) -> None:
    train = ("--workers", "3", "--threads", "1")
    program = ("--", "--epochs", "2", "--global-batch", "48", "--export", "none")
    here = machines["n0"].run(
        *(str(ORCH), "up", "--as-root-anyway", *train, "--checkpoint-dir", str(project / "here"), *program),
        cwd=project,
        timeout_s=400,
        check=False,
    )
    assert here.returncode == 0, here.stdout + here.stderr
    machines["n0"].run("rm", "-rf", f"{machines.directory}/home/.local/state/orch")
    run = up(*train, "--checkpoint-dir", str(project / "there"), *program)
    run.process.wait(400)
    assert run.finish()["outcome"] == "succeeded", run.text
    assert [event["method"] for event in run.events("task_started")] == ["fork"] * 3
    ours, theirs = (json.loads((project / place / "history.json").read_text()) for place in ("here", "there"))
    assert theirs["replicas"] == 3
    for name in ("loss", "accuracy"):
        assert [epoch.get(name) for epoch in theirs["epochs"]] == pytest.approx(
            [epoch.get(name) for epoch in ours["epochs"]], rel=1e-5
        )


def test_each_host_runs_its_tasks_and_logs_come_here(
    up: Any, machines: Testbed, project: Path, counting: tuple[str, ...]
) -> None:
    run = up("--workers", "4", *counting, hosts="n1:2,n2,n3")
    run.until_event("task_started", 4)
    counts = {name: sum("count.py" in line for line in machines[name].command_lines()) for name in HOSTS}
    (project / "end").touch()
    result = run.finish()
    assert counts == {"n1": 2, "n2": 1, "n3": 1}
    assert result["outcome"] == "succeeded"
    assert [task["host"] for task in result["tasks"]] == ["n1", "n1", "n2", "n3"]
    assert all(is_whole(run.log(f"worker:{index}")) for index in range(4))


@pytest.mark.slow
def test_limit_on_open_files_that_is_just_enough(up: Any, machines: Testbed) -> None:
    few, enough = (("prlimit", f"--nofile={files_with_hosts(3, 3) - less}") for less in (1, 0))
    run = up("--workers", "3", "--", "true", before=few)
    assert run.process.wait(PATIENCE_S) == 2
    assert "and 3 hosts with 3 tasks need 50; raise it to 50 at least" in run.text
    assert not (machines["n0"].home / ".local/state/orch/runs").exists()
    assert up("--workers", "3", "--", "true", before=enough).finish()["outcome"] == "succeeded"


@pytest.mark.parametrize("cut", CUTS)
def test_a_short_cut_loses_no_line_and_fails_nothing(
    up: Any, machines: Testbed, project: Path, counting: tuple[str, ...], cut: str
) -> None:
    """TCP sends again what the network has lost."""
    run = up("--workers", "3", *counting)
    run.until_event("task_started", 3)
    cut_host(machines, cut)
    time.sleep(6.0)
    machines.heal()
    # On a busy machine others may be silent, too.
    run.until_event("host_silent", host="n1")
    run.until_event("host_back", host="n1")
    (project / "end").touch()
    result = run.finish()
    assert result["outcome"] == "succeeded"
    assert not run.events("host_lost")
    assert all(is_whole(run.log(f"worker:{index}")) for index in range(3))


@pytest.mark.parametrize("cut", CUTS)
def test_a_host_that_stays_away_is_named_and_ends_its_tasks_itself(
    up: Any, machines: Testbed, counting: tuple[str, ...], cut: str
) -> None:
    run = up("--workers", "3", *counting)
    run.until_event("task_started", 3)
    cut_host(machines, cut)
    result = run.finish()
    assert run.process.returncode == LOST
    assert (result["cause"]["kind"], result["cause"]["host"]) == ("host", "n1")
    # The network is still cut: it was the host that has ended its tasks.
    for name in HOSTS:
        until(lambda name=name: not machines[name].programs())


@pytest.mark.parametrize(
    "victim",
    ["orch", *(pytest.param(each, marks=pytest.mark.slow) for each in ("agent", "ssh", "agent and guard"))],
)
def test_nothing_is_left_after_a_kill(
    up: Any, machines: Testbed, counting: tuple[str, ...], victim: str
) -> None:
    run = up("--workers", "3", *counting)
    run.until_event("task_started", 3)
    kill_victim(machines, victim)
    if victim != "orch":
        result = run.finish()
        assert result["cause"]["kind"] == "host"
        assert victim == "ssh" or result["cause"]["host"] == "n1"
    for machine in machines.machines.values():
        until(lambda machine=machine: not machine.programs())
    if victim == "agent and guard":
        # The next start there removes the directory.
        machines["n0"].run("rm", "-rf", f"{machines.directory}/home/.local/state/orch")
        assert up("--workers", "3", "--", "true").finish()["outcome"] == "succeeded"


@pytest.mark.slow
def test_run_continues_after_its_ssh_was_killed(
    up: Any, machines: Testbed, project: Path, counting: tuple[str, ...]
) -> None:
    run = up("--workers", "3", "--max-restarts", "1", "--checkpoint-dir", str(project / "ckpt"), *counting)
    run.until_event("task_started", 3)
    time.sleep(RAN_AT_LEAST_S)
    kill_victim(machines, "ssh")
    run.until_event("task_started", 6)
    (project / "end").touch()
    assert run.finish()["outcome"] == "succeeded"
    assert "ssh was ended by signal 9 on this machine" in run.text
