"""Batch jobs that Slurm starts again: the run continues as its next attempt, in the same directory."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hosts_run import kill_victim
from orch_command import ORCH
from slurm import Slurm
from testbed import Testbed
from trained_state import ABSOLUTE, RELATIVE, assert_same_training
from waiting import until

# Counts steps until the file `end` is beside its checkpoints. Saves its number when it is told to.
_RESUMES = """
import json, os, pathlib, signal, sys, time

here = pathlib.Path(os.environ["ORCH_CHECKPOINT_DIR"])
saved = here / f"saved-{os.environ['ORCH_TASK'][-1]}"
step = start = int(saved.read_text()) if saved.exists() else 0


def save(*_):
    saved.write_text(str(step))
    sys.exit(42)


signal.signal(signal.SIGTERM, save)
print("attempt", os.environ["ORCH_ATTEMPT"], "from step", start, flush=True)
while not (here / "end").exists():
    step += 1
    facts = {"phase": "training", "epoch": 1, "step": step, "start_step": start}
    os.write(int(os.environ["ORCH_PROGRESS_FD"]), json.dumps(facts).encode() + b"\\n")
    time.sleep(0.05)
"""
_ENGINE = ("--engine", "slurm", "--nodes", "3", "--workers", "3")
_SHARDED = Path(__file__).parent / "sharded_script.py"
_NODES_OFF = {"first node off": "n1", "last node off": "n3"}
# Its first steps are quick, and this one is saved.
_SAVED = 10


@dataclass
class BatchRun:
    """A run whose `orch up` is a script of sbatch. Its supervisor is on n1."""

    machines: Testbed
    slurm: Slurm
    project: Path
    job: str = ""

    def submit(self, *words: str, limit: str = "0") -> None:
        """`limit`: the job's time limit in minutes; 0 for none."""
        command = self._command("up", *words)
        script = f"#!/bin/sh\nexec {' '.join(command)}\n"
        output = f"--output={self.project / 'out'}"
        done = self.machines["n0"].run(
            *("sbatch", "--parsable", "--nodes=3", f"--time={limit}", output, "--open-mode=append"),
            stdin=script.encode(),
            env=self.slurm.environ,
            cwd=self.project,
        )
        self.job = done.stdout.strip()

    def detach(self, *words: str) -> None:
        """Let `orch up -d` submit the job."""
        command = self._command("up", "-d", *words)
        self.machines["n0"].run(*command, env=self.slurm.environ, cwd=self.project)
        (job,) = self.slurm.queue()
        self.job = job.split()[0]

    def _command(self, *words: str) -> tuple[str, ...]:
        verb, *options = words
        places = ("--checkpoint-dir", str(self.project / "kept"), "--log-dir", str(self.project / "runs"))
        return (str(ORCH), verb, "--as-root-anyway", *_ENGINE, *places, *options)

    @property
    def directory(self) -> Path:
        (run,) = (self.project / "runs").glob("[!.]*")
        return run

    @property
    def text(self) -> str:
        logs = (self.project / "out", self.directory / "job.log")
        return "".join(log.read_text(errors="replace") for log in logs if log.exists())

    def events(self, kind: str) -> list[dict[str, Any]]:
        if not [*(self.project / "runs").glob("[!.]*")]:
            return []
        *lines, _ = (self.directory / "events.jsonl").read_bytes().split(b"\n")
        return [event for event in map(json.loads, lines) if event["type"] == kind]

    def until_trains(self, attempt: int) -> None:
        """Wait until each task has reported a step in this attempt."""

        def trains() -> bool:
            events = self.events("task_progressed") if len(self.events("attempt_planned")) == attempt else []
            planned = self.events("attempt_planned")[-1]["at"] if events else 0.0
            tasks = {each["task"] for each in events if each["at"] > planned and each["progress"]["step"]}
            return len(tasks) == 3

        self._until(trains)

    def _until(self, condition: Callable[[], bool]) -> None:
        try:
            until(condition, 300)
        except AssertionError as error:
            raise AssertionError(f"{self.slurm.queue()} {self.text}") from error

    def until_step(self, step: int) -> None:
        """Wait until the first attempt has done so many steps."""

        def is_done() -> bool:
            done = [each["progress"]["step"] for each in self.events("task_progressed")]
            return any(number is not None and number >= step for number in done)

        self._until(is_done)

    def disturb(self, how: str) -> None:
        """Have the attempt end, or lose what it can lose without an end."""
        machines, environ = self.machines, self.slurm.environ
        match how:
            case "preemption":
                machines["n0"].run("srun", "-p", "urgent", "-N3", "--exclusive", "true", env=environ)
            case "notice":
                machines["n1"].run(str(ORCH), "notice", "--as-root-anyway", self.directory.name)
            case "signal":  # as `sbatch --signal=B:USR2@S` sends it
                machines["n0"].run("scancel", "--batch", "--signal=USR2", self.job, env=environ)
            case "kill":
                for process in machines["n1"].processes():
                    if "orchestrator.supervisor" in " ".join(process.cmdline()):
                        process.suspend()
                machines["n0"].run("scontrol", "requeue", self.job, env=environ)
            case "agent killed":
                kill_victim(machines, "agent and keeper")
            case "srun killed" | "all of srun killed":
                self._kill_srun(with_child=how == "all of srun killed")
            case "controller restarted":
                self.slurm.restart_controller()
            case "time limit":
                pass  # it comes by itself

    def _kill_srun(self, *, with_child: bool) -> None:
        """Kill the srun of n2. Its child process then ends the step, unless that child was killed before."""
        for process in self.machines["n1"].processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name() == "srun" and "--nodelist=n2" in process.cmdline():
                    (child,) = process.children()
                    break
        else:
            raise AssertionError(self.machines["n1"].command_lines())
        for victim in (child, process) if with_child else (process,):
            victim.kill()

    def until_pending(self) -> None:
        self._until(lambda: f"{self.job} PENDING" in self.slurm.queue())

    def start_again(self) -> None:
        """Let Slurm start the job again now. It would wait for two minutes."""
        self.until_pending()
        self.machines["n0"].run(
            "scontrol", "update", f"JobId={self.job}", "StartTime=now", env=self.slurm.environ
        )

    def result(self) -> dict[str, Any]:
        until(lambda: not self.slurm.queue(), 400)
        document = json.loads((self.directory / "result.json").read_text())
        assert isinstance(document, dict)
        return document


@pytest.fixture
def batch(machines: Testbed, slurm: Slurm, project: Path) -> Iterator[BatchRun]:
    (project / "resumes.py").write_text(_RESUMES)
    run = BatchRun(machines, slurm, project)
    yield run
    if run.job:
        machines["n0"].run("scancel", run.job, env=slurm.environ, check=False)
    for name in ("n0", "n1"):
        machines[name].run("rm", "-rf", f"{machines.directory}/home/.local/state/orch")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["preemption", "notice", "signal", "time limit", "kill", "detached"])
def test_job_that_is_started_again_continues_its_run(batch: BatchRun, how: str) -> None:
    command = ("--notice", "30s", "--", sys.executable, "resumes.py")
    if how == "detached":
        batch.detach(*command)
    else:
        batch.submit(*command, limit="1" if how == "time limit" else "0")
    batch.until_trains(1)
    first = batch.directory
    batch.disturb("preemption" if how == "detached" else how)
    batch.start_again()
    batch.until_trains(2)
    (batch.project / "kept/end").touch()
    result = batch.result()
    assert batch.directory == first
    assert (result["outcome"], result["attempts"]) == ("succeeded", 2), batch.text
    (end,) = result["history"]
    assert end["cause"]["kind"] == "notice"
    logs = [(first / "logs" / f"worker-{index}.log").read_text() for index in range(3)]
    starts = [[int(line.split()[-1]) for line in log.splitlines()] for log in logs]
    assert [len(each) for each in starts] == [2, 2, 2]
    if how != "kill":
        assert all(start == 0 and again > 0 for start, again in starts)
        assert end["exact"]
        assert end["resumed_at"] > 0
        # Slurm sends SIGTERM to `orch up`, too.
        assert not batch.events("stop_requested")
        assert "3 of 3 tasks said that the state is saved" in end["cause"]["text"]
    if how in ("notice", "signal", "time limit"):  # a preemption may kill `orch up` before it says so
        assert "Slurm starts its job again, and the run continues with attempt 2" in batch.text


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_preempted_training_ends_like_an_undisturbed_one(
    batch: BatchRun, machines: Testbed, project: Path
) -> None:
    program = ("--epochs", "4", "--steps-per-epoch", "60", "--keep", "4", "--export", "none")
    train = ("--workers", "3", "--threads", "1", "--", *program)
    whole = (str(ORCH), "up", "--as-root-anyway", "--checkpoint-dir", str(project / "whole"), *train)
    machines["n0"].run(*whole, cwd=project, timeout_s=400)
    batch.submit("--threads", "1", "--", *program)
    until(lambda: (project / "kept/ckpt-1.index").exists(), 400)
    machines["n0"].run("srun", "-p", "urgent", "-N3", "--exclusive", "true", env=batch.slurm.environ)
    batch.start_again()
    result = batch.result()
    assert (result["outcome"], result["attempts"]) == ("succeeded", 2), batch.text
    assert result["history"][0]["resumed_at"] >= 60
    for epoch in range(1, 5):
        assert_same_training(project / f"kept/ckpt-{epoch}", project / f"whole/ckpt-{epoch}")


@pytest.fixture(scope="module")
def undisturbed(all_machines: Testbed) -> Iterator[dict[str, Any]]:
    """The losses and weights that three workers on one machine have at the end."""
    directory = all_machines.shared / "undisturbed"
    directory.mkdir()
    shutil.copy(_SHARDED, directory)
    places = ("--checkpoint-dir", str(directory), "--log-dir", str(directory / "runs"))
    train = ("--workers", "3", "--threads", "1", "--", _SHARDED.name, "manager")
    all_machines["n0"].run(
        *(str(ORCH), "up", "--as-root-anyway", *places, *train), cwd=directory, timeout_s=400
    )
    yield _end(directory, 0)
    shutil.rmtree(directory)


def _end(directory: Path, rank: int) -> dict[str, Any]:
    return dict(np.load(directory / f"end-{rank}.npz"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("how", "saves", "attempts"),
    [
        ("preemption", "preemption", 2),
        ("notice", "preemption", 2),
        ("time limit", "preemption", 2),
        ("time limit", "manager", 2),
        ("kill", "manager", 2),
        ("first node off", "manager", 2),
        ("last node off", "manager", 2),
        ("agent killed", "manager", 2),
        ("srun killed", "manager", 2),
        ("all of srun killed", "manager", 1),
        ("controller restarted", "manager", 1),
    ],
)
def test_disturbed_training_has_the_losses_and_weights_of_an_undisturbed_one(
    batch: BatchRun, undisturbed: dict[str, Any], how: str, saves: str, attempts: int
) -> None:
    project = batch.project
    shutil.copy(_SHARDED, project)
    on_failure = "restart" if how in ("agent killed", "srun killed") else "abort"
    options = ("--notice", "30s", "--threads", "1", "--on-failure", on_failure)
    batch.submit(*options, "--", _SHARDED.name, saves, "slowly", limit="3" if how == "time limit" else "0")
    batch.until_step(_SAVED + 2)
    if node := _NODES_OFF.get(how):
        batch.slurm.turn_off(node)
        batch.until_pending()  # when Slurm has noticed
        batch.slurm.turn_on(node)
    else:
        batch.disturb(how)
    if how in ("preemption", "notice", "time limit", "kill", *_NODES_OFF):
        batch.start_again()
    if attempts == 1:  # otherwise it must not end before it notices
        (project / "kept/go").touch()
    result = batch.result()
    assert (result["outcome"], result["attempts"]) == ("succeeded", attempts), batch.text
    ends = [_end(project / "kept", rank) for rank in range(3)]
    (start,) = {int(end["start"]) for end in ends}
    assert start >= _SAVED if attempts == 2 else start == 0
    for earlier in result["history"]:
        assert earlier["resumed_at"] == start
        # A worker that gets SIGTERM finishes its step and saves.
        assert saves == "manager" or earlier["steps_lost"] == 0
        assert (earlier["cause"]["host"] == "n3") is (how == "last node off")
    for end in ends:
        for name in ("losses", "weights", "momentum"):
            np.testing.assert_allclose(
                end[name], undisturbed[name], rtol=RELATIVE, atol=ABSOLUTE, err_msg=name
            )


@pytest.mark.slow
def test_other_options_are_refused(batch: BatchRun) -> None:
    (batch.project / "orch.toml").write_text("grace = '9s'\n")
    batch.submit("--", sys.executable, "resumes.py")
    batch.until_trains(1)
    (batch.project / "orch.toml").write_text("grace = '8s'\n")
    batch.machines["n0"].run("scontrol", "requeue", batch.job, env=batch.slurm.environ)
    batch.start_again()
    until(lambda: "grace_s 9.0, now 8.0" in batch.text, 120)
    assert f"Slurm has started job {batch.job} again" in batch.text


def test_allocation_that_ends_too_soon_is_refused(slurm: Slurm, machines: Testbed, project: Path) -> None:
    command = (str(ORCH), "up", "--as-root-anyway", "--engine", "slurm", "--", "true")
    done = machines["n0"].run(
        *("salloc", "--nodes=1", "--time=1", *command), check=False, env=slurm.environ, cwd=project
    )
    assert done.returncode == 2
    assert ", and --notice 2m before its end the tasks would be told to end" in done.stderr
    until(lambda: not slurm.queue())
