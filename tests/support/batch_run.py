"""A batch job that runs `orch up`, from a script or submitted by `orch up -d`, and ways to disturb it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from hosts_run import kill_victim
from login_node import NODES
from orch_command import ORCH, read_document, read_events
from slurm import Slurm
from testbed import Testbed
from waiting import until

# Counts steps until the file `end` is beside its checkpoints. Saves the number of steps on SIGTERM.
RESUMES = """
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


@dataclass
class BatchRun:
    """A run whose `orch up` is a script of sbatch. Its supervisor is on n1."""

    machines: Testbed
    slurm: Slurm
    project: Path
    job: str = ""

    def submit(self, *words: str, limit: str = "0", options: tuple[str, ...] = ()) -> None:
        """`limit`: the job's time limit in minutes; 0 for none. `options`: of sbatch."""
        command = self.command("up", *words)
        script = f"#!/bin/sh\nexec {' '.join(command)}\n"
        output = f"--output={self.project / 'out'}"
        words = (
            "sbatch",
            "--parsable",
            "--nodes=3",
            f"--time={limit}",
            output,
            "--open-mode=append",
            *options,
        )
        self.job = self.slurm.run(*words, stdin=script, cwd=self.project)

    def detach(self, *words: str) -> None:
        """Submit the job with `orch up -d`."""
        self.slurm.run(*self.command("up", "-d", *words), cwd=self.project)
        self.job = self.slurm.job()

    def command(self, *words: str) -> tuple[str, ...]:
        verb, *options = words
        places = ("--checkpoint-dir", str(self.project / "kept"), "--log-dir", str(self.project / "runs"))
        return (str(ORCH), verb, "--as-root-anyway", *NODES, *places, *options)

    @property
    def runs(self) -> list[Path]:
        """The runs of the job, oldest first. Each start of the job has its own."""
        return sorted(
            (self.project / "runs").glob("[!.]*"),
            key=lambda run: float(read_document(run / "run.json")["started_at"]),
        )

    @property
    def directory(self) -> Path:
        """The directory of the newest run."""
        return self.runs[-1]

    @property
    def text(self) -> str:
        logs = (self.project / "out", *(run / "job.log" for run in self.runs))
        return "".join(log.read_text(errors="replace") for log in logs if log.exists())

    def events(self, kind: str) -> list[dict[str, Any]]:
        return read_events(self.directory, kind) if self.runs else []

    def until_trains(self, start: int) -> None:
        """Wait until each task has reported a step in this start of the job."""

        def trains() -> bool:
            events = self.events("task_progressed") if len(self.runs) == start else []
            return len({each["task"] for each in events if each["progress"]["step"]}) == 3

        self.until(trains)

    def until(self, condition: Callable[[], bool]) -> None:
        try:
            until(condition, 300)
        except AssertionError as error:
            raise AssertionError(f"{self.slurm.queue()} {self.text}") from error

    def until_step(self, step: int) -> None:
        """Wait until a task of the first start has done `step` steps."""

        def is_done() -> bool:
            done = [each["progress"]["step"] for each in self.events("task_progressed")]
            return any(number is not None and number >= step for number in done)

        self.until(is_done)

    def disturb(self, how: str) -> None:
        """End the attempt, or a part of it that a run should survive."""
        machines = self.machines
        match how:
            case "preemption":
                self.slurm.preempt()
            case "notice":
                machines["n1"].run(str(ORCH), "notice", "--as-root-anyway", self.directory.name)
            case "signal":  # as `sbatch --signal=B:USR2@S` sends it
                self.slurm.run("scancel", "--batch", "--signal=USR2", self.job)
            case "kill":
                for process in machines["n1"].processes():
                    if "orchestrator.supervisor" in " ".join(process.cmdline()):
                        process.suspend()
                self.slurm.run("scontrol", "requeue", self.job)
            case "agent killed":
                kill_victim(machines, "agent and guard")
            case "srun killed":
                self._kill_srun()
            case "controller restarted":
                self.slurm.restart_controller()
            case "time limit":
                pass  # it comes by itself

    def _kill_srun(self) -> None:
        """Kill the srun of n2. Its child process then ends the step."""
        for process in self.machines["n1"].processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name() == "srun" and "--nodelist=n2" in process.cmdline():
                    process.kill()
                    return
        raise AssertionError(self.machines["n1"].command_lines())

    def until_pending(self) -> None:
        self.until(lambda: f"{self.job} PENDING" in self.slurm.queue())

    def start_again(self) -> None:
        """Let Slurm start the requeued job again within seconds, instead of after two minutes."""
        self.until_pending()
        # In the second of the requeue, a node takes the new credential of the job for the old one, which is revoked.
        time.sleep(2)
        done = self.machines["n0"].run(
            *("scontrol", "update", f"JobId={self.job}", "StartTime=now+3"),
            check=False,
            env=self.slurm.environ,
        )
        # It has started by itself, if Slurm took long to give up a node.
        assert done.returncode == 0 or "no longer pending" in done.stderr, done

    def end(self) -> None:
        """Let the tasks end."""
        (self.project / "kept/end").touch()

    def result(self) -> dict[str, Any]:
        until(lambda: not self.slurm.queue(), 400)
        return read_document(self.directory / "result.json")
