"""A run on the pretend machines, started on n0, and what tests and scripts/bench links do to it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from orch_command import ORCH, Finished, read_document, read_events
from testbed import Machine, Testbed
from waiting import PATIENCE_S, until

# Prints numbered lines until the file `end` is in a directory that all machines see.
COUNT = """
import itertools, pathlib, sys, time
here = pathlib.Path(sys.argv[1])
for number in itertools.count():
    if (here / "end").exists():
        break
    print("line", number, flush=True)
    time.sleep(0.05)
print("last", number, flush=True)
"""
# Runs commands of orch in one process: each line of the input is [directory, words, changes of the environment].
_COMMANDS = """
import json, os, sys
from pathlib import Path
from orch_within import run_within
for line in sys.stdin:
    directory, words, environ = json.loads(line)
    code = run_within(words, Path(directory), {**os.environ, **environ}, Path("/tmp/traces"))
    texts = [Path(f"/tmp/traces.{end}").read_text() for end in ("out", "err")]
    [os.unlink(f"/tmp/traces.{end}") for end in ("out", "err")]
    print(json.dumps([code, *texts]), flush=True)
"""
HOSTS = ("n1", "n2", "n3")
LOST = 137
# On a busy machine a host may be silent for seconds.
PATIENT = ("--link-timeout", "15s")


@dataclass
class HostsRun:
    """`output`: the lines of the tasks. `messages`: orch's own. `environ`: for orch's commands about the run."""

    machines: Testbed
    process: subprocess.Popen[bytes]
    output: Path
    messages: Path
    environ: Mapping[str, str]

    @classmethod
    def start(
        cls,
        machines: Testbed,
        project: Path,
        *words: str,
        hosts: str | None = ",".join(HOSTS),
        before: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> HostsRun:
        """`hosts`: None for Slurm, whose nodes share the state directory. `before`: words in front of `orch up`,
        such as those of `prlimit`."""
        where = () if hosts is None else ("--hosts", hosts)
        environ = {**(env or {}), **(shared_state(project) if hosts is None else {})}
        output, messages = machines.directory / "output", machines.directory / "messages"
        command = [*before, str(ORCH), "up", "--as-root-anyway", *where, *words]
        with output.open("wb") as out, messages.open("wb") as err:
            process = machines["n0"].start(
                *("env", "-C", str(project), *command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environ,
            )
        return cls(machines, process, output, messages, environ)

    @property
    def state(self) -> Path:
        shared = self.environ.get("XDG_STATE_HOME")
        return Path(shared) / "orch" if shared else self.machines["n0"].state

    def orch(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of orch on n0 for this run."""
        run = self.directory.name
        return self.machines["n0"].run(
            str(ORCH), *words, run, "--as-root-anyway", env=self.environ, check=check
        )

    @property
    def directory(self) -> Path:
        (run,) = (self.state / "runs").glob("[!.]*")
        return run

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace") + self.message_text

    @property
    def message_text(self) -> str:
        return self.messages.read_text(errors="replace")

    def events(self, kind: str) -> list[dict[str, Any]]:
        return read_events(self.directory, kind) if (self.directory / "events.jsonl").exists() else []

    def until_event(self, kind: str, count: int = 1, **fields: str) -> dict[str, Any]:
        """Wait for an event with these fields; fails if the run ends before."""
        until(lambda: self.process.poll() is not None or len(self._found(kind, fields)) >= count)
        found = self._found(kind, fields)
        assert len(found) >= count, self.text
        return found[count - 1]

    def finish(self) -> dict[str, Any]:
        """Wait for the end, and return the result."""
        self.process.wait(PATIENCE_S)
        document = read_document(self.directory / "result.json")
        assert document["exit_code"] == self.process.returncode, self.text
        return document

    def log(self, task: str) -> str:
        return (self.directory / "logs" / f"{task.replace(':', '-')}.log").read_text()

    def clear(self) -> None:
        """End the command and wait until the hosts are empty, then remove the run's files."""
        self.machines.heal()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if "XDG_STATE_HOME" in self.environ and [*(self.state / "runs").glob("[!.]*")]:
            self.orch("down", check=False)  # the job outlives its client
        for name in HOSTS:
            until(lambda name=name: not self.machines[name].programs())
        self.forget()

    def forget(self) -> None:
        """Remove the run's files here."""
        shutil.rmtree(self.state, ignore_errors=True)

    def cluster_sizes(self) -> list[int]:
        """The number of workers of each attempt."""
        return [len(event["tasks"]) for event in self.events("attempt_planned")]

    def shrink(self) -> None:
        """Cut n3 off until the run has started with the other hosts."""
        self.machines.cut("n3")
        self.until_event("host_lost", host="n3")
        self.until_event("attempt_planned", 2)

    def grow(self) -> None:
        self.machines.heal()
        self.until_event("host_joined", 2, host="n3")
        self.orch("restart")

    def _found(self, kind: str, fields: dict[str, str]) -> list[dict[str, Any]]:
        try:
            return [event for event in self.events(kind) if fields.items() <= event.items()]
        except ValueError:
            return []  # the run has no directory yet


def shared_state(project: Path) -> dict[str, str]:
    """The variable that puts the state directory where all machines see it."""
    return {"XDG_STATE_HOME": str(project / "state")}


class Commands:
    """Runs commands of orch in one process on a machine, which saves the imports of new ones."""

    def __init__(self, machine: Machine) -> None:
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        self._process = machine.start(
            *(sys.executable, "-c", _COMMANDS),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": path},
        )

    def __enter__(self) -> Commands:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, directory: Path | str, *words: str, env: Mapping[str, str]) -> Finished:
        assert self._process.stdin is not None and self._process.stdout is not None
        verb, *options = words
        command = [str(directory), [verb, "--as-root-anyway", *options], dict(env)]
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        return Finished(*json.loads(self._process.stdout.readline()))


def counting_command(project: Path) -> tuple[str, ...]:
    """A command whose tasks print until the file `end` is in the project."""
    (project / "count.py").write_text(COUNT)
    return ("--", sys.executable, "count.py", str(project))


def host_files(machine: Machine) -> set[str]:
    return without_caches(machine.files())


def without_caches(files: set[str]) -> set[str]:
    """Remove the files of Keras and ssh themselves."""
    kept = ("/.keras/", "/.ssh/")
    return {path for path in files if not any(part in path for part in kept)}


def is_whole(log: str, *, has_ended: bool = True) -> bool:
    """Whether a log of the counting command has each line once, and in order."""
    lines = [line for line in log.splitlines() if line.startswith(("line ", "last "))]
    if not has_ended:
        return lines[:-1] == [f"line {number}" for number in range(len(lines) - 1)]  # the last one may be cut
    return lines == [*(f"line {number}" for number in range(len(lines) - 1)), f"last {len(lines) - 1}"]


def cut_host(machines: Testbed, how: str) -> None:
    """Cut n1 off: `both`, `to the host` or `from the host`."""
    machines.cut("n1", to=how != "from the host", source=how != "to the host")


def kill_victim(machines: Testbed, victim: str) -> None:
    """SIGKILL of `orch` or `ssh` (all of their processes), or of the `agent` or the `agent and guard` of n1."""
    of_host = {"agent": ("orch-agent",), "agent and guard": ("orch-agent", "orch-guard")}.get(victim)
    killed = 0
    for process in machines["n1" if of_host else "n0"].processes():
        # A process may end because another was killed.
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() in of_host if of_host else (process.name() == "ssh") == (victim == "ssh"):
                process.kill()
                killed += 1
    assert killed
