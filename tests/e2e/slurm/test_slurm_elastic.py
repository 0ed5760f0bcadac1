"""Elastic runs under a real Slurm on the pretend machines: a node is cut off, and the run continues with two."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from batch_run import BatchRun
from elastic_run import (
    PATIENT,
    assert_losses_of_an_undisturbed_run,
    cluster_sizes,
    heal_and_grow,
    lose_and_shrink,
)
from orch_command import read_document
from slurm import Slurm
from testbed import Testbed
from waiting import until

_NODES = ("--engine", "slurm", "--nodes", "3", "--workers", "2..3")


@pytest.mark.slow
def test_run_under_slurm_survives_the_loss_of_a_node(
    up: Any, slurm: Slurm, machines: Testbed, project: Path, counting: tuple[str, ...]
) -> None:
    """Slurm would end the job with its node, which --no-kill prevents."""
    run = up(
        *_NODES, "--checkpoint-dir", str(project / "ckpt"), *PATIENT, *counting, hosts=None, env=slurm.environ
    )
    run.until_event("task_started", 3)
    machines.cut("n3")
    run.until_event("host_lost", host="n3")
    run.until_event("task_started", 3 + 2)
    until(lambda: "down" in slurm.node_state("n3"), 200)
    assert [line.partition(" ")[2] for line in slurm.queue()] == ["RUNNING"]
    machines.heal()
    (job,) = (line.partition(" ")[0] for line in slurm.queue())
    run.until_event("noticed", text=f"n3 will not come back: Slurm has taken it out of job {job}")
    run.orch("restart")
    run.until_event("task_started", 3 + 2 + 2)
    (project / "end").touch()
    assert (run.finish()["outcome"], cluster_sizes(run)) == ("succeeded", [3, 2, 2])


@pytest.mark.slow
def test_run_under_slurm_grows_while_its_job_has_the_node(
    up: Any, slurm: Slurm, machines: Testbed, project: Path, counting: tuple[str, ...]
) -> None:
    slurm.configure(SlurmdTimeout="600")
    run = up(
        *_NODES, "--checkpoint-dir", str(project / "ckpt"), *PATIENT, *counting, hosts=None, env=slurm.environ
    )
    run.until_event("task_started", 3)
    lose_and_shrink(machines, run)
    run.until_event("task_started", 3 + 2)
    heal_and_grow(machines, run)
    run.until_event("task_started", 3 + 2 + 3)
    (project / "end").touch()
    assert (run.finish()["outcome"], cluster_sizes(run)) == ("succeeded", [3, 2, 3])


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_job_that_starts_again_has_all_nodes_again(batch: BatchRun, machines: Testbed) -> None:
    """Slurm never adds a node to a running job, so only a new start brings all workers back."""
    words = ("--workers", "2..3", "--notice", "30s", *PATIENT, "--", sys.executable, "resumes.py")
    batch.submit(*words, options=("--no-kill",))
    batch.until_trains(1)
    machines.cut("n3")
    batch.until(lambda: any("n3 will not come back" in each["text"] for each in batch.events("noticed")))
    machines.heal()
    batch.disturb("notice")
    batch.start_again()
    batch.until_trains(2)
    (batch.project / "kept/end").touch()
    result, before = batch.result(), read_document(batch.runs[0] / "result.json")
    ends = (*before["history"], before, result)
    assert [end["workers"] for end in ends] == [3, 2, 3], batch.text
    assert [end["cause"] and end["cause"]["kind"] for end in ends] == ["host", "notice", None]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_loss_of_a_run_that_shrinks_and_grows_is_that_of_an_undisturbed_run(
    up: Any, slurm: Slurm, machines: Testbed, project: Path
) -> None:
    """All nodes have the same number of slots: three workers on three nodes, of which one is lost."""
    slurm.configure(SlurmdTimeout="600")
    options = {"hosts": None, "env": slurm.environ}
    assert_losses_of_an_undisturbed_run(up, machines, project, _NODES, [3, 2, 3], **options)
