"""Runs under a real Slurm on the pretend machines: the outcomes of a local run, and an empty queue afterwards."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from hosts_run import is_whole
from orch_command import ORCH
from slurm import Slurm
from testbed import Testbed
from waiting import until

_LOST = 137
_NOTICE = 42
# worker:1 fails with its own exit code. Its peers wait until they are stopped.
_FAIL = """
import json, os, sys, time
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
    sys.exit(7)
time.sleep(600)
"""
_ENGINE = ("--engine", "slurm", "--nodes", "3", "--workers", "3")


def up_under(up: Any, slurm: Slurm, *words: str, within: tuple[str, ...] = ()) -> Any:
    return up(*words, hosts=None, before=within, env=slurm.environ)


@pytest.mark.slow
def test_logs_arrive_from_a_new_allocation(
    up: Any, slurm: Slurm, project: Path, counting: tuple[str, ...]
) -> None:
    run = up_under(up, slurm, *_ENGINE, *counting)
    run.until_event("task_started", 3)
    assert [line.partition(" ")[2] for line in slurm.queue()] == ["RUNNING"]
    (project / "end").touch()
    result = run.finish()
    assert result["outcome"] == "succeeded"
    assert [task["host"] for task in result["tasks"]] == ["n1", "n2", "n3"]
    assert all(is_whole(run.log(f"worker:{index}")) for index in range(3))


def test_allocation_of_the_shell_is_used_and_kept(up: Any, slurm: Slurm, machines: Testbed) -> None:
    """Here a batch script is that shell: orch runs on its first node."""
    script = (
        f"#!/bin/sh\n{ORCH} up --as-root-anyway --engine slurm --workers 3 -- hostname\nsqueue -h -o %T\n"
    )
    output = machines.shared / "batch.out"
    machines["n0"].run(
        *("sbatch", "--nodes=3", f"--output={output}", f"--chdir={machines.shared}"),
        stdin=script.encode(),
        env=slurm.environ,
    )
    until(lambda: not slurm.queue())
    text = output.read_text()
    assert {line for line in text.splitlines() if line.startswith("worker:")} == {
        f"worker:{index} | n{index + 1}" for index in range(3)
    }
    assert text.splitlines()[-1] == "RUNNING"
    machines["n1"].run("rm", "-rf", f"{machines.directory}/home/.local/state/orch")


@pytest.mark.slow
def test_exported_script_runs_as_it_is(slurm: Slurm, machines: Testbed, project: Path) -> None:
    (project / "train.py").write_text('import os; print("level", os.environ["LEVEL"])')
    options = ("--nodes", "2", "-n", "2", "--time", "10m", "-e", "LEVEL=7", "-o", "job.sh")
    machines["n0"].run(
        *(str(ORCH), "export", "slurm", *options, "--as-root-anyway", "--", "train.py"), cwd=project
    )
    script = (project / "job.sh").read_text().replace(" up ", " up --as-root-anyway ")
    (project / "job.sh").write_text(script)
    output = project / "out"
    machines["n0"].run("sbatch", f"--output={output}", "job.sh", env=slurm.environ, cwd=project)
    until(lambda: not slurm.queue())
    lines = set(output.read_text().splitlines())
    assert {"worker:0 | level 7", "worker:1 | level 7"} <= lines
    machines["n1"].run("rm", "-rf", f"{machines.directory}/home/.local/state/orch")


def test_exit_code_is_that_of_the_task_that_failed(up: Any, slurm: Slurm, project: Path) -> None:
    (project / "fail.py").write_text(_FAIL)
    run = up_under(up, slurm, *_ENGINE, "--", sys.executable, "fail.py")
    result = run.finish()
    assert (result["exit_code"], result["cause"]["task"]) == (7, "worker:1")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["scancel", "preemption", "time limit"])
def test_end_of_the_job_is_a_notice(
    up: Any, slurm: Slurm, machines: Testbed, counting: tuple[str, ...], how: str
) -> None:
    """A cancelled job is not meant to start again: its exit code is that of SIGTERM."""
    limit = ("--time", "60s", "--notice", "30s") if how == "time limit" else ()
    run = up_under(up, slurm, *_ENGINE, *limit, *counting)
    run.until_event("task_started", 3)
    if how == "scancel":
        (job,) = slurm.queue()
        machines["n0"].run("scancel", job.split()[0], env=slurm.environ)
    elif how == "preemption":
        machines["n0"].run("srun", "-p", "urgent", "-N3", "--exclusive", "true", env=slurm.environ)
    run.process.wait(200)
    result = run.finish()
    said, code = {
        "scancel": ("Slurm's job 1 was cancelled", 143),
        "preemption": ("Slurm ends its job", _NOTICE),
        "time limit": ("the time limit of its job is reached in ", _NOTICE),
    }[how]
    assert (result["outcome"], result["exit_code"], result["cause"]["kind"]) == ("stopped", code, "notice")
    assert said in result["cause"]["text"], run.text
    # SIGTERM, which may come before Python handles it, and not the SIGKILL that follows.
    assert {task["signal"] or task["exit_code"] for task in result["tasks"]} <= {signal.SIGTERM, 143}


@pytest.mark.parametrize("victim", ["orch", pytest.param("srun", marks=pytest.mark.slow)])
def test_nothing_is_left_after_a_kill(
    up: Any, slurm: Slurm, machines: Testbed, project: Path, counting: tuple[str, ...], victim: str
) -> None:
    run = up_under(up, slurm, *_ENGINE, *counting)
    run.until_event("task_started", 3)
    for process in machines["n0"].processes():
        # Killing one process may end another one.
        with contextlib.suppress(psutil.NoSuchProcess):
            line = " ".join(process.cmdline())
            if process.name() == "srun" if victim == "srun" else "orch up" in line or "supervisor" in line:
                process.kill()
    if victim == "srun":
        (project / "end").touch()
        result = run.finish()
        # A part of srun that is killed last ends its step. Otherwise another srun takes its place.
        if result["outcome"] == "succeeded":
            assert all(is_whole(run.log(f"worker:{index}")) for index in range(3))
        else:
            assert (result["exit_code"], result["cause"]["kind"]) == (_LOST, "host")
    until(lambda: not slurm.queue())


def test_controller_may_restart(up: Any, slurm: Slurm, project: Path, counting: tuple[str, ...]) -> None:
    run = up_under(up, slurm, *_ENGINE, *counting)
    run.until_event("task_started", 3)
    slurm.restart_controller()
    (project / "end").touch()
    assert run.finish()["outcome"] == "succeeded"


@pytest.mark.parametrize(
    ("words", "environ", "text"),
    [
        (("--nodes", "5"), {}, "the partition does not have such nodes"),
        (("--nodes", "1", "--partition", "nope"), {}, "name one with --partition"),
        ((), {}, "how many nodes? write --nodes 3"),
        ((), {"SLURM_JOB_ID": "999"}, "SLURM_JOB_ID=999: Slurm does not know this job"),
        (("--nodes", "1", "--hosts", "n1"), {}, "Slurm chooses the hosts"),
        (("--nodes", "1", "--network", "private"), {}, "a private network exists on one machine only"),
        (("--nodes", "1", "--sync"), {}, "on a file system that all nodes have"),
        (("--nodes", "1", "--time", "2m"), {}, "2m is not longer than --notice 2m"),
        (("--nodes", "1", "--slurm", "--nonsense"), {}, "Slurm refuses the allocation"),
    ],
)
def test_bad_request_is_refused(
    up: Any, slurm: Slurm, words: tuple[str, ...], environ: dict[str, str], text: str
) -> None:
    run = up("--engine", "slurm", *words, "--", "true", hosts=None, env={**slurm.environ, **environ})
    assert run.process.wait(60) == 2
    assert text in run.text
    assert not slurm.queue()


def test_machine_without_slurm_is_named(up: Any, slurm: Slurm, project: Path) -> None:
    programs = project / "bin"
    programs.mkdir()
    (programs / "setpriv").symlink_to("/usr/bin/setpriv")
    path = ("/usr/bin/env", f"PATH={programs}")
    run = up(
        "--engine", "slurm", "--nodes", "1", "--", "/bin/true", hosts=None, before=path, env=slurm.environ
    )
    assert run.process.wait(60) == 2
    assert "salloc was not found on this machine" in run.text


def test_program_that_is_missing_is_named(up: Any, slurm: Slurm, project: Path) -> None:
    programs = project / "bin"
    programs.mkdir()
    for name in ("setpriv", "salloc", "squeue", "scontrol", "sh", "sleep"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    path = ("/usr/bin/env", f"PATH={programs}")
    run = up_under(up, slurm, "--engine", "slurm", "--nodes", "1", "--", "/bin/true", within=path)
    assert run.process.wait(60) == 2, run.text
    assert "srun could not be started" in run.text
    until(lambda: not slurm.queue())


@pytest.mark.parametrize("whose", ["own", "of nobody"])
def test_allocation_that_cannot_be_used_is_refused(
    up: Any, slurm: Slurm, machines: Testbed, whose: str
) -> None:
    options = () if whose == "own" else ("--uid=nobody",)
    words = ("--output=/dev/null", "--chdir=/", "--parsable", *options)
    job = machines["n0"].run("sbatch", *words, "--wrap=true", env=slurm.environ).stdout.strip()
    until(lambda: not slurm.queue())
    run = up("--engine", "slurm", "--", "true", hosts=None, env={**slurm.environ, "SLURM_JOB_ID": job})
    assert run.process.wait(60) == 2
    text = "this allocation has ended (completed)" if whose == "own" else "this job belongs to nobody"
    assert f"SLURM_JOB_ID={job}: {text}" in run.text
