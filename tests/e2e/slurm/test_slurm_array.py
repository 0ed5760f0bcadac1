"""Job arrays under a real Slurm on the pretend machines."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hosts_run import HOSTS
from orch_command import ORCH
from slurm import Slurm
from testbed import Testbed
from waiting import until


@pytest.mark.slow
def test_each_element_of_a_job_array_is_a_run(slurm: Slurm, machines: Testbed, project: Path) -> None:
    """The last element has the number of the whole array, for which Slurm answers about all elements."""
    places = ("--log-dir", str(project / "runs"), "--name", "sweep")
    command = (str(ORCH), "up", "--as-root-anyway", "--engine", "slurm", "--workers", "1", *places)
    script = f"#!/bin/sh\nexec {' '.join(command)} -- {sys.executable} -c 'while True: pass'\n"
    submitted = machines["n0"].run(
        *("sbatch", "--parsable", "--array=1-2", "--nodes=1", "--exclusive", f"--output={project}/out-%a"),
        stdin=script.encode(),
        env=slurm.environ,
        cwd=project,
    )
    job = submitted.stdout.strip()

    def started() -> int:
        events = [path.read_text() for path in (project / "runs").glob("[!.]*/events.jsonl")]
        return sum('"task_started"' in text for text in events)

    try:
        until(lambda: started() == 2)
        # The notice that Slurm gives to one element is not one for the other.
        machines["n0"].run("scancel", f"{job}_2", env=slurm.environ)
        until(lambda: len(slurm.queue()) == 1)
        (left,) = slurm.queue()
        assert left == f"{job}_1 RUNNING"
    finally:
        machines["n0"].run("scancel", job, env=slurm.environ)
        until(lambda: not slurm.queue())
        for name in HOSTS:
            machines[name].run("rm", "-rf", f"{machines.directory}/home/.local/state/orch")
    results = [json.loads(path.read_text()) for path in (project / "runs").glob("*/result.json")]
    assert [(each["outcome"], each["exit_code"], each["cause"]["kind"]) for each in results] == [
        ("stopped", 143, "notice")
    ] * 2
    assert {each["run_id"][:8] for each in results} == {"sweep-1-", "sweep-2-"}
    records = [json.loads(path.read_text()) for path in (project / "runs").glob("*/run.json")]
    assert f"{job}_2" in {record["job"] for record in records}
