"""Elastic runs on three pretend machines: a host is cut off and comes back, and the run has 4, 3 and 4 workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from elastic_run import (
    PATIENT,
    assert_losses_of_an_undisturbed_run,
    cluster_sizes,
    heal_and_grow,
    lose_and_shrink,
    orch,
)
from hosts_run import kill_victim
from testbed import Testbed
from waiting import until

SLOTS = "n1:2,n2,n3"


@pytest.mark.slow
def test_run_has_the_workers_that_fit_on_the_hosts(
    up: Any, machines: Testbed, project: Path, counting: tuple[str, ...]
) -> None:
    options = ("--checkpoint-dir", str(project / "ckpt"), *PATIENT, "--global-batch", "24")
    run = up("--workers", "2..4", *options, *counting, hosts=SLOTS)
    run.until_event("task_started", 4)
    until(lambda: "line 0" in run.log("worker:3"))
    lose_and_shrink(machines, run)
    run.until_event("task_started", 4 + 3)
    run.until_event("noticed", text="attempt 2 has 3 workers instead of 4: n3 is lost")
    planned = run.events("attempt_planned")[1]
    assert [task["host"] for task in planned["tasks"]] == ["n1", "n1", "n2"]
    assert {role: len(addresses) for role, addresses in planned["cluster"].items()} == {"worker": 3}
    assert {task["env"]["ORCH_GLOBAL_BATCH"] for task in planned["tasks"]} == {"24"}
    status = json.loads(orch(machines, project, "status", "--json"))
    assert [task["task"] for task in status["tasks"]] == [f"worker:{index}" for index in range(3)]
    # The log of a task that the run no longer has can still be read.
    assert "line 0" in orch(machines, project, "logs", "worker:3")
    heal_and_grow(machines, run)
    run.until_event("task_started", 4 + 3 + 4)
    (project / "end").touch()
    result = run.finish()
    assert (result["outcome"], cluster_sizes(run)) == ("succeeded", [4, 3, 4])
    assert [end["workers"] for end in (*result["history"], result)] == [4, 3, 4]
    assert "4 -> 3 -> 4; the program does not report its global batch" in run.text
    assert result["history"][0]["cause"]["host"] == "n3"


@pytest.mark.slow
def test_host_whose_agent_was_killed_is_used_again(
    up: Any, machines: Testbed, project: Path, counting: tuple[str, ...]
) -> None:
    run = up("--workers", "2..3", "--checkpoint-dir", str(project / "ckpt"), *counting)
    run.until_event("task_started", 3)
    kill_victim(machines, "agent")
    run.until_event("attempt_planned", 2)
    assert cluster_sizes(run) in ([3, 3], [3, 2])  # on a busy machine it is not back in time
    (project / "end").touch()
    assert run.finish()["outcome"] == "succeeded"


@pytest.mark.slow
def test_run_with_too_few_hosts_fails_with_the_lost_host_as_cause(
    up: Any, machines: Testbed, project: Path, counting: tuple[str, ...]
) -> None:
    options = ("--checkpoint-dir", str(project / "ckpt"), *PATIENT)
    run = up("--workers", "3..4", *options, *counting, hosts=SLOTS)
    run.until_event("task_started", 4)
    machines.cut("n1")
    result = run.finish()
    assert (result["exit_code"], result["cause"]["host"]) == (137, "n1")
    assert result["not_restarted"] == "n2 and n3 have too few slots for 3 workers, the fewest of --workers"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_loss_of_a_run_that_shrinks_and_grows_is_that_of_an_undisturbed_run(
    up: Any, machines: Testbed, project: Path
) -> None:
    places = ("--workers", "2..4")
    assert_losses_of_an_undisturbed_run(up, machines, project, places, [4, 3, 4], hosts=SLOTS)
