"""Starts the training program as a cluster of real processes, and kills every one of them at the end."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
    """The workers, worker 0 first, and their checkpoint directory."""

    tasks: list[Task] = field(default_factory=list)
    checkpoints: Path = Path()
    progress: int | None = None

    def wait(self) -> list[int]:
        """Return all exit codes."""
        return [task.wait() for task in self.tasks]

    def read_progress(self) -> bytes:
        """Return the content of the pipe of `progress_of`, after its writer has ended."""
        assert self.progress is not None
        return os.read(self.progress, PROGRESS_BYTES)

    @property
    def outputs(self) -> list[str]:
        return [task.output for task in self.tasks]

    def describe(self) -> str:
        return "\n".join(f"== {task.name}: {task.process.poll()}\n{task.output}" for task in self.tasks)


@dataclass(frozen=True)
class Trained:
    """The logs and files of a finished training; `progress` is what the chief wrote to its pipe."""

    outputs: list[str]
    checkpoints: Path
    event_files: Path
    scratch: list[list[str]]
    progress: bytes


def names_in(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


@contextlib.contextmanager
def run_workers(
    directory: Path,
    workers: int,
    arguments: Sequence[str] = (),
    *,
    program: Sequence[str] = PROGRAM,
    started: Sequence[int] | None = None,
    checkpoints: Path | None = None,
    progress_of: int | None = None,
    forks: ForkServer | None = None,
) -> Iterator[Cluster]:
    """Start `workers` processes of one cluster, or only those in `started`; all are killed at the end.

    `forks` starts them without the import of TensorFlow.
    """
    directory.mkdir(parents=True, exist_ok=True)
    shared = checkpoints or directory / "checkpoints"
    cluster = Cluster(checkpoints=shared)
    with held_ports(workers) as ports, contextlib.ExitStack() as stack:
        addresses = [f"127.0.0.1:{port}" for port in ports]
        for index in range(workers) if started is None else started:
            scratch = directory / f"scratch-{index}"
            scratch.mkdir(exist_ok=True)
            env = {
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "TF_CONFIG": json.dumps(
                    {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
                ),
                "ORCH_CHECKPOINT_DIR": str(shared),
                "ORCH_SCRATCH_DIR": str(scratch),
            }
            writer: int | None = None
            if index == progress_of:
                cluster.progress, writer = os.pipe()
                fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PROGRESS_BYTES)
                stack.callback(os.close, cluster.progress)
                stack.callback(os.close, writer)
            log = directory / f"worker-{index}.log"
            log.write_bytes(b"")  # without the lines of an earlier cluster in this directory
            words = [*program, *arguments]
            process = (forks.start if forks else start_python)(words, log, env, directory, writer)
            stack.callback(_end, process)
            cluster.tasks.append(Task(f"worker:{index}", process, log, scratch))
        yield cluster


class Roles:
    """The tasks of a cluster with roles, by name; a task that has ended can be started again."""

    def __init__(
        self,
        directory: Path,
        cluster: dict[str, list[str]],
        arguments: Sequence[str],
        env: dict[str, str],
        forks: ForkServer | None,
    ) -> None:
        self.checkpoints = directory / "checkpoints"
        self.tasks: dict[str, Task] = {}
        self._directory, self._cluster, self._arguments, self._env = directory, cluster, arguments, env
        self._start = forks.start if forks else start_python

    def start(self, name: str) -> Task:
        """Start the task `name` (`ps:1`) on its own address, appending to its log."""
        role, _, index = name.partition(":")
        own = {role: ["127.0.0.1:1"]} if role == "evaluator" else {}
        config = {"cluster": {**self._cluster, **own}, "task": {"type": role, "index": int(index)}}
        scratch = self._directory / f"scratch-{role}-{index}"
        scratch.mkdir(exist_ok=True)
        log = self._directory / f"{role}-{index}.log"
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TF_CONFIG": json.dumps(config),
            "ORCH_CHECKPOINT_DIR": str(self.checkpoints),
            "ORCH_SCRATCH_DIR": str(scratch),
            **self._env,
        }
        process = self._start([*PROGRAM, *self._arguments], log, env, self._directory)
        self.tasks[name] = Task(name, process, log, scratch)
        return self.tasks[name]

    def describe(self) -> str:
        return "\n".join(
            f"== {name}: {task.process.poll()}\n{task.output}" for name, task in self.tasks.items()
        )

    def end(self) -> None:
        for task in self.tasks.values():
            _end(task.process)


@contextlib.contextmanager
def run_roles(
    directory: Path,
    roles: dict[str, int],
    arguments: Sequence[str] = (),
    env: dict[str, str] | None = None,
    *,
    forks: ForkServer | None = None,
) -> Iterator[Roles]:
    """Start `roles` (`{"chief": 1, "worker": 2, "ps": 1, "evaluator": 1}`); all are killed at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    counts = {role: count for role, count in roles.items() if role != "evaluator"}
    with held_ports(sum(counts.values())) as ports:
        free = iter(ports)
        cluster = {role: [f"127.0.0.1:{next(free)}" for _ in range(count)] for role, count in counts.items()}
        started = Roles(directory, cluster, arguments, env or {}, forks)
        try:
            for role, count in roles.items():
                for index in range(count):
                    started.start(f"{role}:{index}")
            yield started
        finally:
            started.end()


def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(LONGEST_RUN_S)
