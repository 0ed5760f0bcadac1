"""The run directory as its supervisor writes it: made once, appended to, ended once."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from orchestrator.errors import UsageError
from orchestrator.events import Event, event_line
from orchestrator.result import RunResult
from orchestrator.runs.locks import Lock
from orchestrator.runs.paths import PRIVATE_DIR, PRIVATE_FILE, RunPaths, names_dir, runs_dir

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class RunRecord(BaseModel):
    """run.json. `directory` is where `up` was called; `spec` has its secrets masked."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: Literal[1] = 1
    id: str
    name: str
    directory: str
    started_at: float
    started_mono: float
    boot_id: str
    supervisor_pid: int
    supervisor_start_ticks: int
    checkpoint_dir: str
    versions: dict[str, str]
    spec: dict[str, Any]


def boot_id() -> str:
    """Differs after every reboot: pids and monotonic times of another boot mean nothing."""
    return _BOOT_ID.read_text().strip()


def new_run_id(name: str) -> str:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return f"{name}-{stamp}-{secrets.token_hex(2)}"


def make_private(directory: Path) -> None:
    """The directory, with its missing parents, all of these 0700; UsageError where it cannot be."""
    try:
        # mkdir(parents=True) would make the parents as the umask has them, perhaps for everybody to write.
        for missing in reversed([path for path in (directory, *directory.parents) if not path.exists()]):
            missing.mkdir(mode=PRIVATE_DIR, exist_ok=True)
        directory.mkdir(mode=PRIVATE_DIR, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{directory}: cannot be made: {os.strerror(error.errno or 0)}") from error


def write_atomically(path: Path, text: str) -> None:
    """Beside, then over: a reader sees the old document or the new one, never half of one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
    with os.fdopen(fd, "w") as out:
        out.write(text)
    beside.replace(path)


@dataclass
class RunStore:
    """One live run's directory, its lock and its event log; close() lets go of both."""

    paths: RunPaths
    _lock: Lock
    _name_lock: Lock | None
    _events_fd: int

    @classmethod
    def create(cls, run_id: str, log_dir: Path | None, name_lock: Lock | None) -> RunStore:
        """Make the directory under another name, locked, and show it whole: no probe sees it unlocked."""
        make_private(runs_dir())
        parent = runs_dir() if log_dir is None else log_dir
        make_private(parent)
        hidden = parent / f".{run_id}.new"
        hidden.mkdir(mode=PRIVATE_DIR)
        lock = Lock.acquire(RunPaths(hidden).lock)
        if lock is None:
            raise UsageError(f"{hidden}: is in use")
        of_run = RunPaths(hidden)
        for directory in (of_run.logs, of_run.scratch, of_run.checkpoints, of_run.exceptions, of_run.stacks):
            directory.mkdir(mode=PRIVATE_DIR)
        paths = RunPaths(parent / run_id)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        events_fd = os.open(RunPaths(hidden).events, flags, PRIVATE_FILE)
        return cls(paths, lock, name_lock, events_fd)

    def publish(self, record: RunRecord) -> None:
        """From here on every verb finds the run."""
        hidden = self.paths.root.with_name(f".{self.paths.run_id}.new")
        write_atomically(RunPaths(hidden).record, record.model_dump_json(indent=1) + "\n")
        hidden.rename(self.paths.root)
        if self.paths.root.parent.resolve() != runs_dir().resolve():
            (runs_dir() / self.paths.run_id).symlink_to(self.paths.root)

    def append(self, event: Event) -> None:
        os.write(self._events_fd, event_line(event))

    def write_sample(self, at: float, mono: float, tasks: dict[str, dict[str, float]]) -> None:
        write_atomically(self.paths.sample, json.dumps({"at": at, "mono": mono, "tasks": tasks}))

    def write_result(self, result: RunResult) -> None:
        write_atomically(self.paths.result, result.model_dump_json(indent=1) + "\n")

    def remove_scratch(self) -> None:
        shutil.rmtree(self.paths.scratch, ignore_errors=True)

    def close(self) -> None:
        if self._events_fd >= 0:
            os.close(self._events_fd)
            self._events_fd = -1
        self.paths.control.unlink(missing_ok=True)
        if self._name_lock is not None:
            self._name_lock.release()
        self._lock.release()


def lock_name(name: str) -> Lock | None:
    """The lock of the live run of that name; None when another run has it."""
    make_private(names_dir())
    return Lock.acquire(names_dir() / name)
