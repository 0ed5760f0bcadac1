"""Runs under a real Slurm on the pretend machines: refused requests, and the outcomes of a local run."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from hosts_run import HostsRun
from login_node import LoginNode
from orch_command import ORCH, read_document, read_events
from slurm import Slurm
from testbed import Testbed
from waiting import PATIENCE_S, until

LOST, NOTICE = 137, 42
# worker:1 fails with its own exit code. Its peers wait until they are stopped.
FAIL = """
import json, os, pathlib, sys, time
print(os.uname().nodename, flush=True)
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
pathlib.Path(f"up-{index}").touch()
while index != 1 or len([*pathlib.Path().glob("up-*")]) < 3:
    time.sleep(0.1)
sys.exit(7)
"""


def submit(slurm: Slurm, project: Path, script: str, *options: str) -> list[str]:
    """The output of a batch job."""
    slurm.run("sbatch", f"--output={project}/out", *options, stdin=f"#!/bin/sh\n{script}\n", cwd=project)
    until(lambda: not slurm.queue())
    return (project / "out").read_text().splitlines()


def test_allocation_of_the_shell_is_used_and_kept(slurm: Slurm, project: Path) -> None:
    """Here a batch script is that shell: orch runs on its first node. Its exit code is that of the task that failed."""
    (project / "fail.py").write_text(FAIL)
    up = f"{ORCH} up --as-root-anyway --engine slurm --workers 3 -- fail.py"
    lines = submit(slurm, project, f"{up}\necho exit code $?\nsqueue -h -o %T", "--nodes=3")
    shown = [line for line in lines if line.startswith("worker:") and " | " in line]
    assert sorted(shown) == [f"worker:{index} | n{index + 1}" for index in range(3)], lines
    assert lines[-2:] == ["exit code 7", "RUNNING"]


@pytest.mark.slow
def test_exported_script_runs_as_it_is(slurm: Slurm, project: Path) -> None:
    (project / "train.py").write_text('import os; print("level", os.environ["LEVEL"])')
    options = ("--nodes", "2", "-n", "2", "--time", "10m", "-e", "LEVEL=7", "-o", "job.sh")
    slurm.run(str(ORCH), "export", "slurm", *options, "--as-root-anyway", "--", "train.py", cwd=project)
    script = (project / "job.sh").read_text().replace(" up ", " up --as-root-anyway ")
    assert {"worker:0 | level 7", "worker:1 | level 7"} <= set(submit(slurm, project, script))


def test_allocation_that_ends_too_soon_is_refused(slurm: Slurm, machines: Testbed, project: Path) -> None:
    command = (str(ORCH), "up", "--as-root-anyway", "--engine", "slurm", "--", "true")
    words = ("salloc", "--nodes=1", "--time=1", *command)
    done = machines["n0"].run(*words, check=False, env=slurm.environ, cwd=project)
    assert done.returncode == 2
    assert ", and --notice 2m before its end the tasks would be told to end" in done.stderr
    until(lambda: not slurm.queue())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said", "code"),
    [
        ("scancel", "Slurm's job {job} was cancelled", 143),
        ("preemption", "Slurm ends its job", NOTICE),
        ("time limit", "the time limit of its job is reached in ", NOTICE),
        # Signals to `orch up` reach the supervisor on a node.
        ("USR2", "", NOTICE),
        ("TERM", "", 143),
        ("INT", "", 130),
    ],
)
def test_end_of_the_job_or_of_orch_stops_the_run(
    started: Callable[..., HostsRun], slurm: Slurm, machines: Testbed, how: str, said: str, code: int
) -> None:
    """A cancelled job is not meant to start again: its exit code is that of SIGTERM."""
    run = started(*(("--time", "60s", "--notice", "30s") if how == "time limit" else ()))
    job = slurm.job()
    match how:
        case "scancel":
            slurm.run("scancel", job)
        case "preemption":
            slurm.preempt()
        case "USR2" | "TERM" | "INT":
            signal_all(machines, "n0", "bin/orch up", getattr(signal, f"SIG{how}"))
    run.process.wait(200)
    result = run.finish()
    assert (result["outcome"], result["exit_code"]) == ("stopped", code)
    if said:
        assert result["cause"]["kind"] == "notice"
        assert said.format(job=job) in result["cause"]["text"], run.text
    # SIGTERM, which may come before Python handles it, and not the SIGKILL that follows.
    assert {task["signal"] or task["exit_code"] for task in result["tasks"]} <= {signal.SIGTERM, 143}


def signal_all(machines: Testbed, name: str, text: str, number: int) -> None:
    """Send a signal to the processes of a machine whose command line contains `text`."""
    for process in machines[name].processes():
        # The end of one process may end another one.
        with contextlib.suppress(psutil.NoSuchProcess):
            if text in " ".join(process.cmdline()):
                process.send_signal(number)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["orch", "supervisor", "srun"])
def test_nothing_is_left_after_a_kill(
    start: Callable[..., HostsRun],
    started: Callable[..., HostsRun],
    slurm: Slurm,
    machines: Testbed,
    victim: str,
) -> None:
    run = started()
    machine, text = {
        "orch": ("n0", "bin/orch up"),
        "supervisor": ("n1", "orchestrator.supervisor"),
        "srun": ("n1", "srun "),
    }[victim]
    signal_all(machines, machine, text, signal.SIGKILL)
    if victim == "orch":
        # The job continues without the command that has submitted it.
        assert [line.split()[1] for line in slurm.queue()] == ["RUNNING"]
        assert "stopped worker:0" in run.orch("down").stderr
    elif victim == "supervisor":
        assert run.process.wait(PATIENCE_S) == 125
        assert "was killed" in run.text or "Slurm's job" in run.text
    else:
        result = run.finish()
        assert (result["exit_code"], result["cause"]["kind"]) == (LOST, "host")
        until(lambda: not slurm.queue())
        # Slurm kills the agent with its guard. The next start there removes their directory.
        run.forget()
        assert start("--", "true").finish()["outcome"] == "succeeded"
    until(lambda: not slurm.queue())


@pytest.mark.slow
def test_each_element_of_a_job_array_is_a_run(slurm: Slurm, project: Path) -> None:
    """The last element has the number of the whole array, for which Slurm answers about all elements."""
    runs = project / "runs"
    places = ("--log-dir", str(runs), "--name", "sweep")
    command = (str(ORCH), "up", "--as-root-anyway", "--engine", "slurm", "--workers", "1", *places)
    script = f"#!/bin/sh\nexec {' '.join(command)} -- {sys.executable} -c 'while True: pass'\n"
    words = ("--parsable", "--array=1-2", "--nodes=1", "--exclusive", f"--output={project}/out-%a")
    job = slurm.run("sbatch", *words, stdin=script, cwd=project)
    try:
        until(lambda: sum(bool(read_events(run, "task_started")) for run in runs.glob("[!.]*")) == 2)
        # The notice that Slurm gives to one element is not one for the other.
        slurm.run("scancel", f"{job}_2")
        until(lambda: len(slurm.queue()) == 1)
        assert slurm.queue() == [f"{job}_1 RUNNING"]
    finally:
        slurm.run("scancel", job)
        until(lambda: not slurm.queue())
    results = [read_document(path) for path in runs.glob("*/result.json")]
    assert [(each["outcome"], each["exit_code"], each["cause"]["kind"]) for each in results] == [
        ("stopped", 143, "notice")
    ] * 2
    assert {each["run_id"][:8] for each in results} == {"sweep-1-", "sweep-2-"}
    assert f"{job}_2" in {read_document(path)["job"] for path in runs.glob("*/run.json")}


# Options besides --engine slurm, changes of the environment, and what orch says.
REFUSED: list[tuple[tuple[str, ...], dict[str, str], str]] = [
    (("--nodes", "5"), {}, "would let this run wait for ever (Partition"),
    (("--nodes", "1", "--partition", "nope"), {}, "name one with --partition"),
    ((), {}, "how many nodes? write --nodes 3"),
    ((), {"SLURM_JOB_ID": "999"}, "SLURM_JOB_ID=999: Slurm does not know this job"),
    (("--nodes", "1", "--hosts", "n1"), {}, "Slurm chooses the hosts"),
    (("--nodes", "1", "--network", "private"), {}, "a private network exists on one machine only"),
    (("--nodes", "1", "--sync"), {}, "on a file system that all nodes have"),
    (("--nodes", "1", "--time", "2m"), {}, "2m is not longer than --notice 2m"),
    (("--nodes", "1", "--slurm", "--nonsense"), {}, "sbatch: unrecognized option '--nonsense'"),
    (("--nodes", "1", "--slurm", "--array=1-2"), {}, "each element of a job array is a run of its own"),
    (("-d", "--nodes", "5"), {}, "would let this run wait for ever (Partition"),
    (("-d", "--nodes", "1", "--partition", "nope"), {}, "name one with --partition"),
    (("-d", "--nodes", "1"), {"SLURM_JOB_ID": "7"}, "in the allocation of Slurm's job 7"),
]


def test_bad_request_is_refused_and_leaves_nothing(login: LoginNode, slurm: Slurm) -> None:
    """Among them the allocations that have ended or belong to another user, and programs of Slurm that are missing."""
    words = ("sbatch", "--output=/dev/null", "--chdir=/", "--parsable", "--wrap=true")
    ended, foreign = slurm.run(*words), slurm.run(*words, "--uid=nobody")
    empty = login.project / "empty"
    empty.mkdir()
    until(lambda: not slurm.queue())
    cases = [
        *REFUSED,
        ((), {"SLURM_JOB_ID": ended}, f"SLURM_JOB_ID={ended}: this allocation has ended (completed)"),
        ((), {"SLURM_JOB_ID": foreign}, f"SLURM_JOB_ID={foreign}: this job belongs to nobody"),
        (("--nodes", "1"), {"PATH": str(empty)}, "sbatch was not found on this machine"),
    ]
    wrong = []
    for options, environ, said in cases:
        command = ("up", "--engine", "slurm", *options, "--", "/bin/true")
        done = login.commands.run(login.project, *command, env=login.environ | environ)
        if done.code != 2 or said not in " ".join(done.err.split()):
            wrong.append((options, environ, done))
    assert not wrong
    until(lambda: not slurm.queue())
    assert not list(login.runs.glob("*"))
