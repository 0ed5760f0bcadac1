"""A run on the pretend machines, started on n0, and what tests and scripts/bench links do to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from orch_command import ORCH, read_document, read_events
from testbed import Machine, Testbed
from waiting import PATIENCE_S, until

# Prints numbered lines until the file `end` is in a directory that all machines see, and a mark when `mark` is there.
COUNT = """
import itertools, pathlib, sys, time
here = pathlib.Path(sys.argv[1])
is_marked = False
for number in itertools.count():
    if (here / "end").exists():
        break
    if not is_marked and (here / "mark").exists():
        is_marked = True
        print("marked", flush=True)
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
    print(json.dumps([code, Path("/tmp/traces.err").read_text()]))
os.unlink("/tmp/traces.err"), os.unlink("/tmp/traces.out")
"""
HOSTS = ("n1", "n2", "n3")
LOST = 137
_STATE = "home/.local/state/orch"


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
        return Path(shared) / "orch" if shared else self.machines["n0"].home / ".local/state/orch"

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
        """End the command and wait until the hosts are empty, then remove the run's files here."""
        self.machines.heal()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if "XDG_STATE_HOME" in self.environ and [*(self.state / "runs").glob("[!.]*")]:
            self.orch("down", check=False)  # the job outlives its client
        for name in HOSTS:
            until(lambda name=name: not self.machines[name].programs())
        self.machines["n0"].run("rm", "-rf", f"{self.machines.directory}/{_STATE}", str(self.state))

    def _found(self, kind: str, fields: dict[str, str]) -> list[dict[str, Any]]:
        try:
            return [event for event in self.events(kind) if fields.items() <= event.items()]
        except ValueError:
            return []  # the run has no directory yet


def shared_state(project: Path) -> dict[str, str]:
    """The variable that puts the state directory where all machines see it."""
    return {"XDG_STATE_HOME": str(project / "state")}


def run_commands(
    machine: Machine, commands: Sequence[tuple[str, Sequence[str], Mapping[str, str]]]
) -> list[tuple[int, str]]:
    """Run commands of orch (directory, words, changes of the environment) in one process.

    Return the exit code and stderr of each.
    """
    lines = "".join(f"{json.dumps(command)}\n" for command in commands)
    path = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
    done = machine.run(sys.executable, "-c", _COMMANDS, stdin=lines.encode(), env=path)
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


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


def is_whole(log: str) -> bool:
    """Whether a log of the counting command has each line once, and in order."""
    *lines, last = [line for line in log.splitlines() if line.startswith(("line ", "last "))]
    return lines == [f"line {number}" for number in range(len(lines))] and last == f"last {len(lines)}"


def cut_host(machines: Testbed, how: str) -> None:
    """Cut n1 off: `both`, `to the host` or `from the host`."""
    match how:
        case "both":
            machines.cut("n1")
        case "to the host":
            machines.cut_one_way(to="n1")
        case _:
            machines.cut_one_way(source="n1")


def kill_victim(machines: Testbed, victim: str) -> None:
    """SIGKILL of `orch` or `ssh` (all of their processes), or of the `agent` or the `agent and guard` of n1."""
    names = ("orch-agent", "orch-guard")[: 2 if "guard" in victim else 1]
    killed = 0
    for process in machines["n0" if victim in ("orch", "ssh") else "n1"].processes():
        # A process may end because another was killed.
        with contextlib.suppress(psutil.NoSuchProcess):
            if victim in ("orch", "ssh"):
                is_meant = (process.name() == "ssh") == (victim == "ssh")
            else:
                is_meant = process.name() in names
            if is_meant:
                process.kill()
                killed += 1
    assert killed
