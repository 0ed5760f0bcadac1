"""Starts the training program as a cluster of real processes, and kills every one of them at the end."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from forks import ForkedProcess, ForkServer, start_python
from held_ports import held_ports

ROOT = Path(__file__).resolve().parents[4]
# Seconds. Long, because the machine may be busy; a test that reaches it hangs.
LONGEST_RUN_S = 180.0
# Pipe size for all the progress of a run, which is read after the end.
PROGRESS_BYTES = 1 << 20
PROGRAM = ("-P", "-m", "worker")
# An epoch takes 1 s of CPU. After so many, 90 % of the digits are recognised.
TRAINED_EPOCHS = 4

Process = subprocess.Popen[bytes] | ForkedProcess


@dataclass
class Task:
    """A started process; its log holds stdout and stderr."""

    name: str
    process: Process
    log: Path
    scratch: Path

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self) -> int:
        """Return the exit code, negative for a signal."""
        return self.process.wait(LONGEST_RUN_S)

    def wait_for_line(self, text: str) -> None:
        """Wait until the log holds `text`; AssertionError if the process ends before."""
        ended = False
        while text not in self.output:
            assert not ended, f"{self.name} ended before {text!r}:\n{self.output}"
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.05)
                ended = True

    def wait_for_listener(self) -> None:
        """Wait until the process listens on a TCP port; AssertionError if it ends before."""
        while not any(
            link.status == psutil.CONN_LISTEN for link in psutil.Process(self.process.pid).net_connections()
        ):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.05)
                raise AssertionError(f"{self.name} ended before listening:\n{self.output}")

    def signal(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)


@dataclass
class Cluster:
    """The tasks of a cluster, workers in the order of their index; one that has ended can be started again."""

    directory: Path
    addresses: dict[str, list[str]]
    words: Sequence[str]
    checkpoints: Path
    env: Mapping[str, str | None]
    forks: ForkServer
    by_name: dict[str, Task] = field(default_factory=dict)
    # What the first task reported, once all have ended.
    progress: bytes = b""

    @property
    def tasks(self) -> list[Task]:
        return list(self.by_name.values())

    @property
    def outputs(self) -> list[str]:
        return [task.output for task in self.tasks]

    @property
    def history(self) -> Any:
        return json.loads((self.checkpoints / "history.json").read_text())

    def start(self, name: str, progress: int | None = None) -> Task:
        """Start the task `name` (`ps:1`) on its own address, appending to its log."""
        role, _, index = name.partition(":")
        own = {role: ["127.0.0.1:1"]} if role == "evaluator" else {}
        config = {"cluster": {**self.addresses, **own}, "task": {"type": role, "index": int(index)}}
        scratch = self.directory / f"scratch-{role}-{index}"
        scratch.mkdir(exist_ok=True)
        log = self.directory / f"{role}-{index}.log"
        variables = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TF_CONFIG": json.dumps(config),
            "ORCH_CHECKPOINT_DIR": str(self.checkpoints),
            "ORCH_SCRATCH_DIR": str(scratch),
            **self.env,
        }
        env = {name: value for name, value in variables.items() if value is not None}
        # The fork server has imported Keras 3.
        start = start_python if "TF_USE_LEGACY_KERAS" in env else self.forks.start
        self.by_name[name] = Task(name, start(self.words, log, env, self.directory, progress), log, scratch)
        return self.by_name[name]

    def wait(self) -> list[int]:
        """Return all exit codes."""
        return [task.wait() for task in self.tasks]

    def describe(self) -> str:
        return "\n".join(f"== {task.name}: {task.process.poll()}\n{task.output}" for task in self.tasks)

    def end(self) -> None:
        for task in self.tasks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(task.process.pid, signal.SIGKILL)
            task.wait()


class Clusters:
    """Starts clusters, each in its own directory below `directory`."""

    def __init__(self, directory: Path, forks: ForkServer) -> None:
        self.directory, self.forks, self.started = directory, forks, 0

    @contextlib.contextmanager
    def start(
        self,
        roles: int | dict[str, int],
        words: Sequence[str] = (),
        *,
        program: Sequence[str] = PROGRAM,
        checkpoints: Path | None = None,
        env: Mapping[str, str | None] | None = None,
        only: str | None = None,
    ) -> Iterator[Cluster]:
        """Start so many workers, or `{"chief": 1, "ps": 1}`, or `only` one task of them; all are killed at the end."""
        self.started += 1
        directory = self.directory / f"cluster-{self.started}"
        directory.mkdir()
        counts = {"worker": roles} if isinstance(roles, int) else roles
        listed = {role: count for role, count in counts.items() if role != "evaluator"}
        names = [f"{role}:{index}" for role, count in counts.items() for index in range(count)]
        shared = checkpoints or directory / "checkpoints"
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PROGRESS_BYTES)
        with held_ports(sum(listed.values())) as ports, os.fdopen(reader, "rb") as progress:
            free = iter(ports)
            addresses = {role: [f"127.0.0.1:{next(free)}" for _ in range(n)] for role, n in listed.items()}
            cluster = Cluster(directory, addresses, [*program, *words], shared, env or {}, self.forks)
            try:
                with os.fdopen(writer, "wb"):
                    for name in [only] if only else names:
                        cluster.start(name, writer if name == names[0] else None)
                yield cluster
            finally:
                cluster.end()
                cluster.progress = progress.read()

    def train(self, roles: int | dict[str, int], *words: str, code: int = 0, **more: Any) -> Cluster:
        """Return the cluster after its end, when each task has exited with `code`."""
        with self.start(roles, words, **more) as cluster:
            assert set(cluster.wait()) == {code}, cluster.describe()
        return cluster


def names_in(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())
