"""Runs under a real Slurm on the pretend machines: refused requests, and the outcomes of a local run."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from hosts_run import run_commands
from login_node import NODES, LoginNode
from orch_command import ORCH
from slurm import Slurm
from testbed import Testbed
from waiting import PATIENCE_S, until

_LOST = 137
_NOTICE = 42
# worker:1 fails with its own exit code. Its peers wait until they are stopped.
_FAIL = """
import json, os, pathlib, sys, time
print(os.uname().nodename, flush=True)
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
pathlib.Path(f"up-{index}").touch()
while index != 1 or len([*pathlib.Path().glob("up-*")]) < 3:
    time.sleep(0.1)
sys.exit(7)
"""


def up_under(up: Any, slurm: Slurm, *words: str) -> Any:
    return up(*NODES, *words, hosts=None, env=slurm.environ)


def test_allocation_of_the_shell_is_used_and_kept(slurm: Slurm, machines: Testbed, project: Path) -> None:
    """Here a batch script is that shell: orch runs on its first node. Its exit code is that of the task that failed."""
    (project / "fail.py").write_text(_FAIL)
    up = f"{ORCH} up --as-root-anyway --engine slurm --workers 3 -- fail.py"
    output = project / "out"
    machines["n0"].run(
        *("sbatch", "--nodes=3", f"--output={output}"),
        stdin=f"#!/bin/sh\n{up}\necho exit code $?\nsqueue -h -o %T\n".encode(),
        env=slurm.environ,
        cwd=project,
    )
    until(lambda: not slurm.queue())
    lines = output.read_text().splitlines()
    shown = [line for line in lines if line.startswith("worker:") and " | " in line]
    assert sorted(shown) == [f"worker:{index} | n{index + 1}" for index in range(3)], lines
    assert lines[-2:] == ["exit code 7", "RUNNING"]
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


@pytest.mark.slow
@pytest.mark.parametrize("how", ["scancel", "preemption", "time limit"])
def test_end_of_the_job_is_a_notice(
    up: Any, slurm: Slurm, machines: Testbed, counting: tuple[str, ...], how: str
) -> None:
    """A cancelled job is not meant to start again: its exit code is that of SIGTERM."""
    limit = ("--time", "60s", "--notice", "30s") if how == "time limit" else ()
    run = up_under(up, slurm, *limit, *counting)
    run.until_event("task_started", 3)
    (job,) = (line.split()[0] for line in slurm.queue())
    if how == "scancel":
        machines["n0"].run("scancel", job, env=slurm.environ)
    elif how == "preemption":
        machines["n0"].run("srun", "-p", "urgent", "-N3", "--exclusive", "true", env=slurm.environ)
    run.process.wait(200)
    result = run.finish()
    said, code = {
        "scancel": (f"Slurm's job {job} was cancelled", 143),
        "preemption": ("Slurm ends its job", _NOTICE),
        "time limit": ("the time limit of its job is reached in ", _NOTICE),
    }[how]
    assert (result["outcome"], result["exit_code"], result["cause"]["kind"]) == ("stopped", code, "notice")
    assert said in result["cause"]["text"], run.text
    # SIGTERM, which may come before Python handles it, and not the SIGKILL that follows.
    assert {task["signal"] or task["exit_code"] for task in result["tasks"]} <= {signal.SIGTERM, 143}


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["orch", "supervisor", "srun"])
def test_nothing_is_left_after_a_kill(
    up: Any, slurm: Slurm, machines: Testbed, counting: tuple[str, ...], victim: str
) -> None:
    run = up_under(up, slurm, *counting)
    run.until_event("task_started", 3)
    machine, text = {
        "orch": ("n0", "bin/orch up"),
        "supervisor": ("n1", "orchestrator.supervisor"),
        "srun": ("n1", "srun "),
    }[victim]
    for process in machines[machine].processes():
        # Killing one process may end another one.
        with contextlib.suppress(psutil.NoSuchProcess):
            if text in " ".join(process.cmdline()):
                process.kill()
    if victim == "orch":
        # The job continues without the command that has submitted it.
        assert [line.split()[1] for line in slurm.queue()] == ["RUNNING"]
        assert "stopped worker:0" in run.orch("down").stderr
    elif victim == "supervisor":
        assert run.process.wait(PATIENCE_S) == 125
        assert "was killed" in run.text or "Slurm's job" in run.text
    else:
        result = run.finish()
        assert (result["exit_code"], result["cause"]["kind"]) == (_LOST, "host")
        until(lambda: not slurm.queue())
        # Slurm kills the agent with its guard. The next start there removes their directory.
        machines["n0"].run("rm", "-rf", str(run.state))
        assert up_under(up, slurm, "--", "true").finish()["outcome"] == "succeeded"
    until(lambda: not slurm.queue())


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [("INT", 130), ("TERM", 143), ("USR2", _NOTICE)])
def test_signal_to_orch_reaches_the_supervisor_on_a_node(
    up: Any, slurm: Slurm, machines: Testbed, counting: tuple[str, ...], number: str, code: int
) -> None:
    run = up_under(up, slurm, *counting)
    run.until_event("task_started", 3)
    for process in machines["n0"].processes():
        if "bin/orch up" in " ".join(process.cmdline()):
            process.send_signal(getattr(signal, f"SIG{number}"))
    result = run.finish()
    assert (result["outcome"], result["exit_code"]) == ("stopped", code)
    assert {task["exit_code"] or task["signal"] for task in result["tasks"]} <= {143, signal.SIGTERM}


# Options besides --engine slurm, changes of the environment, and what orch says.
REFUSED: list[tuple[tuple[str, ...], dict[str, str], str]] = [
    (("--nodes", "5"), {}, "the partition does not have such nodes"),
    (("--nodes", "1", "--partition", "nope"), {}, "name one with --partition"),
    ((), {}, "how many nodes? write --nodes 3"),
    ((), {"SLURM_JOB_ID": "999"}, "SLURM_JOB_ID=999: Slurm does not know this job"),
    (("--nodes", "1", "--hosts", "n1"), {}, "Slurm chooses the hosts"),
    (("--nodes", "1", "--network", "private"), {}, "a private network exists on one machine only"),
    (("--nodes", "1", "--sync"), {}, "on a file system that all nodes have"),
    (("--nodes", "1", "--time", "2m"), {}, "2m is not longer than --notice 2m"),
    (("--nodes", "1", "--slurm", "--nonsense"), {}, "sbatch: unrecognized option '--nonsense'"),
    (("--nodes", "1", "--slurm", "--array=1-2"), {}, "each element of a job array is a run of its own"),
    (("-d", "--nodes", "5"), {}, "the partition does not have such nodes"),
    (("-d", "--nodes", "1", "--partition", "nope"), {}, "name one with --partition"),
    (("-d", "--nodes", "1"), {"SLURM_JOB_ID": "7"}, "in the allocation of Slurm's job 7"),
]


def test_bad_request_is_refused_and_leaves_nothing(login: LoginNode, machines: Testbed, slurm: Slurm) -> None:
    """Among them the allocations that have ended or belong to another user, and programs of Slurm that are missing."""
    ended, foreign = (
        machines["n0"]
        .run(
            "sbatch",
            "--output=/dev/null",
            "--chdir=/",
            "--parsable",
            *options,
            "--wrap=true",
            env=slurm.environ,
        )
        .stdout.strip()
        for options in ((), ("--uid=nobody",))
    )
    empty = login.project / "empty"
    empty.mkdir()
    until(lambda: not slurm.queue())
    cases = [
        *REFUSED,
        ((), {"SLURM_JOB_ID": ended}, f"SLURM_JOB_ID={ended}: this allocation has ended (completed)"),
        ((), {"SLURM_JOB_ID": foreign}, f"SLURM_JOB_ID={foreign}: this job belongs to nobody"),
        (("--nodes", "1"), {"PATH": str(empty)}, "sbatch was not found on this machine"),
    ]
    up = ("up", "--as-root-anyway", "--engine", "slurm")
    commands = [
        (str(login.project), (*up, *words, "--", "/bin/true"), {**login.environ, **environ})
        for words, environ, _ in cases
    ]
    done = run_commands(machines["n0"], commands)
    wrong = [
        (case, code, err)
        for case, (code, err) in zip(cases, done, strict=True)
        if code != 2 or case[-1] not in " ".join(err.split())
    ]
    assert not wrong
    until(lambda: not slurm.queue())
    assert not list(login.runs.glob("*"))
