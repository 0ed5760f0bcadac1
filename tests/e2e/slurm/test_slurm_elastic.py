"""Elastic runs under a real Slurm on the pretend machines: a node is cut off, and the run continues with two."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from batch_run import BatchRun
from hosts_run import PATIENT, HostsRun
from orch_command import read_document
from slurm import Slurm
from testbed import Testbed
from waiting import until

pytestmark = pytest.mark.slow
ELASTIC = ("--workers", "2..3", *PATIENT)


def test_run_under_slurm_survives_the_loss_of_a_node(
    started: Callable[..., HostsRun], slurm: Slurm, machines: Testbed, project: Path
) -> None:
    """Slurm would end the job with its node, which --no-kill prevents."""
    run = started(*ELASTIC, "--checkpoint-dir", str(project / "ckpt"))
    run.shrink()
    run.until_event("task_started", 3 + 2)
    until(lambda: "down" in slurm.node_state("n3"), 200)
    ((job, state),) = (line.split() for line in slurm.queue())
    assert state == "RUNNING"
    machines.heal()
    run.until_event("noticed", text=f"n3 will not come back: Slurm has taken it out of job {job}")
    run.orch("restart")
    run.until_event("task_started", 3 + 2 + 2)
    (project / "end").touch()
    assert (run.finish()["outcome"], run.cluster_sizes()) == ("succeeded", [3, 2, 2])


def test_run_under_slurm_grows_while_its_job_has_the_node(
    started: Callable[..., HostsRun], slurm: Slurm, project: Path
) -> None:
    slurm.configure(SlurmdTimeout="600")
    run = started(*ELASTIC, "--checkpoint-dir", str(project / "ckpt"))
    run.shrink()
    run.until_event("task_started", 3 + 2)
    run.grow()
    run.until_event("task_started", 3 + 2 + 3)
    (project / "end").touch()
    assert (run.finish()["outcome"], run.cluster_sizes()) == ("succeeded", [3, 2, 3])


@pytest.mark.timeout(400)
def test_job_that_starts_again_has_all_nodes_again(batch: BatchRun, machines: Testbed) -> None:
    """Slurm never adds a node to a running job, so only a new start brings all workers back."""
    batch.submit(*ELASTIC, "--notice", "30s", "--", sys.executable, "resumes.py", options=("--no-kill",))
    batch.until_trains(1)
    machines.cut("n3")
    batch.until(lambda: any("n3 will not come back" in each["text"] for each in batch.events("noticed")))
    machines.heal()
    batch.disturb("notice")
    batch.start_again()
    batch.until_trains(2)
    batch.end()
    result, before = batch.result(), read_document(batch.runs[0] / "result.json")
    ends = (*before["history"], before, result)
    assert [end["workers"] for end in ends] == [3, 2, 3], batch.text
    assert [end["cause"] and end["cause"]["kind"] for end in ends] == ["host", "notice", None]
