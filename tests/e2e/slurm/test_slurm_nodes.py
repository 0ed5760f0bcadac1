"""Nodes that fail under a real Slurm on the pretend machines: before the start, and during the training."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from batch_run import BatchRun
from hosts_run import HostsRun
from login_node import NODES, LoginNode
from orch_command import ORCH, read_document
from slurm import Slurm
from testbed import Testbed
from waiting import PATIENCE_S, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
LOST, NOTICE = 137, 42
RESUMES = ("--", sys.executable, "resumes.py")


def held_python(project: Path) -> tuple[str, Path]:
    """An interpreter that hangs on n2 while a file is there, and the file."""
    python, hold = project / "python", project / "hold"
    wait = f'while [ "$(hostname)" = n2 ] && [ -e {hold} ]; do sleep 0.1; done'
    python.write_text(f'#!/bin/sh\n{wait}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python), hold


def remove_agents(machines: Testbed, name: str) -> None:
    """Remove the directories of agents that were killed with their guards."""
    machines[name].run("sh", "-c", "rm -rf /tmp/orch-*")


@pytest.mark.parametrize("what", ["slurmd", "prolog", "interpreter"])
def test_node_that_never_starts_its_agent_is_named(
    start: Callable[..., HostsRun], slurm: Slurm, project: Path, counting: tuple[str, ...], what: str
) -> None:
    words: tuple[str, ...] = ()
    python, hold = held_python(project)
    hold.touch()
    if what == "slurmd":
        (daemon,) = slurm.daemons("n2", "slurmd")
        daemon.suspend()
    elif what == "prolog":
        slurm.set_prolog(f"while [ $SLURMD_NODENAME = n2 ] && [ -e {hold} ]; do sleep 0.1; done")
    else:
        words = ("--remote-python", python)
    run = start(*words, *counting)
    code = run.process.wait(200)
    hold.unlink()
    if what == "slurmd":
        daemon.resume()
    assert "n2: " in run.text
    assert 'leave it out: --slurm "--exclude=n2"' in run.text
    assert code == 2
    # Slurm keeps the job until the node has confirmed the end of its part, for which it asks repeatedly.
    until(lambda: not slurm.queue(), 150)


@pytest.mark.parametrize("how", ["signal", "preemption"])
def test_notice_while_the_nodes_are_checked_again_is_not_lost(batch: BatchRun, how: str) -> None:
    """Slurm starts the job once more, although no task of its second start has worked."""
    python, hold = held_python(batch.project)
    batch.submit("--notice", "30s", "--remote-python", python, *RESUMES)
    batch.until_trains(1)
    hold.touch()
    batch.disturb("notice")
    batch.start_again()
    batch.until(lambda: bool([line for line in batch.machines["n2"].programs() if python in line]))
    batch.disturb(how)
    if how == "signal":
        hold.unlink()
    batch.start_again()
    hold.unlink(missing_ok=True)
    # Without a signal to it, the second `orch up` has made no run.
    batch.until_trains(3 if how == "signal" else 2)
    batch.end()
    result = batch.result()
    assert result["outcome"] == "succeeded", batch.text
    if how == "signal":
        second = read_document(batch.runs[1] / "result.json")
        assert (second["exit_code"], second["cause"]["kind"]) == (NOTICE, "notice")


@pytest.mark.parametrize(("number", "code"), [("USR2", NOTICE), ("TERM", 143), ("HUP", 143)])
def test_signal_while_the_nodes_are_checked_for_the_first_time(
    slurm: Slurm, machines: Testbed, project: Path, number: str, code: int
) -> None:
    """A notice is kept until the run exists."""
    python, hold = held_python(project)
    hold.touch()
    up = (str(ORCH), "up", "--as-root-anyway", "--engine", "slurm", "--workers", "3", "--remote-python")
    words = ("--log-dir", str(project / "runs"), "--", "sleep", "600")
    command = " ".join((*up, python, *words))
    salloc = machines["n0"].start(
        *("env", "-C", str(project), "salloc", "--nodes=3", "sh", "-c", f"echo $$ >pid; exec {command}"),
        env=slurm.environ,
    )
    until(lambda: [line for line in machines["n2"].programs() if python in line])
    machines["n0"].run("sh", "-c", f"kill -{number} $(cat {project}/pid)")
    hold.unlink()
    assert salloc.wait(100) == code
    assert bool([*(project / "runs").glob("[!.]*/result.json")]) == (code == NOTICE)
    until(lambda: not slurm.queue())


@pytest.mark.parametrize("how", ["cut", "turned off"])
def test_lost_node_is_named_before_slurm_misses_it(
    started: Callable[..., HostsRun], slurm: Slurm, machines: Testbed, how: str
) -> None:
    slurm.configure(SlurmdTimeout="60")
    run = started()
    until(lambda: "line 1\n" in run.log("worker:1"))
    machines.cut("n2") if how == "cut" else slurm.turn_off("n2")
    result = run.finish()
    assert (result["exit_code"], result["cause"]["kind"]) == (LOST, "host"), run.text
    assert result["cause"]["host"] == "n2"
    assert slurm.node_state("n2") not in ("down", "down*")
    if how == "cut":
        # The agent on n2 ends the tasks by itself.
        until(lambda: not [line for line in machines["n2"].programs() if "count.py" in line])
    else:
        slurm.turn_on("n2")
        remove_agents(machines, "n2")


@pytest.mark.parametrize("where", ["salloc", "sbatch", "detached"])
def test_run_that_has_lost_a_node_ends_its_job(batch: BatchRun, where: str) -> None:
    """Slurm may not requeue the job. A user could start a new run from the checkpoint."""
    machines, salloc = batch.machines, None
    match where:
        case "salloc":
            words = ("env", "-C", str(batch.project), "salloc", "--nodes=3", *batch.command("up", *RESUMES))
            salloc = machines["n0"].start(*words, env=batch.slurm.environ)
        case "sbatch":
            batch.submit(*RESUMES, options=("--no-requeue",))
        case _:
            batch.detach("--slurm", "--no-requeue", *RESUMES)
    batch.until_trains(1)
    batch.slurm.turn_off("n2")
    batch.until((batch.directory / "result.json").exists)
    batch.slurm.turn_on("n2")
    result = batch.result()
    assert (result["exit_code"], result["cause"]["host"], result["attempts"]) == (LOST, "n2", 1)
    remove_agents(machines, "n2")
    if salloc is not None:
        assert salloc.wait(PATIENCE_S) == LOST
        return
    job = batch.slurm.run("scontrol", "show", "job", "--oneliner", batch.job)
    assert {"JobState=FAILED", f"ExitCode={LOST}:0", "Restarts=0"} <= set(job.split())


def test_detached_run_whose_first_node_has_no_power_names_it(
    login: LoginNode, slurm: Slurm, machines: Testbed, counting: tuple[str, ...]
) -> None:
    """`status` names it before Slurm reports the node as lost, and the end of the run does, too."""
    slurm.configure(SlurmdTimeout="100")
    login.orch("up", "-d", "--slurm", "--no-requeue", *NODES, *counting)
    until(lambda: len(login.events("task_ready")) == 3)
    slurm.turn_off("n1")
    try:
        until(lambda: "no sign from the supervisor for 1m" in login.orch("status").err, 150)
        assert ", on node n1" in login.orch("status").err
        until(lambda: "lost" in login.status()["state"], 200)
        assert "has lost a node; the supervisor was on node n1" in login.orch("status").err
    finally:
        slurm.turn_on("n1")
        remove_agents(machines, "n1")


def test_next_run_waits_until_no_task_of_the_run_before_can_be_left(batch: BatchRun) -> None:
    batch.submit("--grace", "20s", *RESUMES)
    batch.until_trains(1)
    batch.disturb("kill")
    batch.start_again()
    batch.until(lambda: f"may still run tasks of {batch.runs[0].name}" in batch.text)
    batch.until_trains(2)
    batch.end()
    assert batch.result()["outcome"] == "succeeded"


@pytest.mark.parametrize("where", ["sbatch", "detached"])
def test_cancelled_batch_job_is_not_preempted(batch: BatchRun, where: str) -> None:
    start = batch.submit if where == "sbatch" else batch.detach
    start(*RESUMES)
    batch.until_trains(1)
    batch.slurm.run("scancel", batch.job)
    result = batch.result()
    assert (result["outcome"], result["exit_code"], result["attempts"]) == ("stopped", 143, 1), batch.text
    assert f"Slurm's job {batch.job} was cancelled; 3 of 3 tasks" in result["cause"]["text"]


def test_run_continues_when_slurm_gives_up_a_node_that_still_works(batch: BatchRun) -> None:
    """Slurm ends the steps on the other nodes. On this one, the agent ends its tasks when it loses its connection."""
    batch.slurm.configure(SlurmdTimeout="10")
    batch.detach(*RESUMES)
    batch.until_trains(1)
    first = batch.directory
    for daemon in batch.slurm.daemons("n2", "slurmd"):
        daemon.kill()
    batch.until_pending()
    until(lambda: not [line for line in batch.machines["n2"].programs() if "resumes.py" in line])
    batch.slurm.turn_on("n2")
    batch.start_again()
    batch.until_trains(2)
    batch.end()
    result = batch.result()
    assert (result["outcome"], len(batch.runs)) == ("succeeded", 2), batch.text
    assert read_document(first / "result.json")["cause"]["kind"] == "notice"
