"""Create and write the directory of a live run. Only its supervisor does this."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.core.state.events import Event, event_line
from orchestrator.core.state.result import RunResult
from orchestrator.store.directory import PRIVATE_DIR
from orchestrator.store.files import make_private, open_private, write_atomically
from orchestrator.store.open_files import AppendFile, storage_reason
from orchestrator.store.runs.locks import Lock
from orchestrator.store.runs.paths import RunPaths, runs_dir
from orchestrator.store.runs.record import RunRecord, first_line

# Space reserved for result.json with the log tails of a few tasks, and for the last events of all tasks.
_RESULT_BYTES = 64 << 10
_EVENTS_BYTES = 128 << 10


def new_run_id(name: str) -> str:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return f"{name}-{stamp}-{secrets.token_hex(2)}"


class _Reserve:
    """A file of allocated blocks, so that a run can write its result on a full disk."""

    def __init__(self, path: Path) -> None:
        """Allocate the blocks. OSError if the disk has no space for them."""
        self._fd = open_private(path, os.O_RDWR)
        try:
            os.posix_fallocate(self._fd, 0, _RESULT_BYTES + _EVENTS_BYTES)
        except OSError:
            os.close(self._fd)
            path.unlink()
            raise

    def free_event_space(self) -> None:
        try:
            os.ftruncate(self._fd, _RESULT_BYTES)
        except OSError:
            return

    def replace(self, reserve: Path, document: Path, data: bytes) -> None:
        """Write `data` into the allocated blocks and rename the file `reserve` to `document`. OSError."""
        done = 0
        while done < len(data):
            done += os.pwrite(self._fd, data[done:], done)
        os.ftruncate(self._fd, len(data))
        reserve.replace(document)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass
class RunStore:
    """The directory, lock and event log of one live run, until close().

    After publish() no method fails. Data that a full disk rejects is kept and written later; the first failure is
    reported once.
    """

    paths: RunPaths
    _lock: Lock
    _name_lock: Lock | None
    _events: AppendFile
    _reserve: _Reserve
    result_is_written: bool = False
    _is_failure_reported: bool = False
    _failure: str | None = None

    @classmethod
    def create(cls, run_id: str, log_dir: Path | None, name_lock: Lock | None) -> RunStore:
        """Create the directory under a hidden name and lock it, so that no probe sees the run without its lock."""
        make_private(runs_dir())
        parent = runs_dir() if log_dir is None else log_dir
        make_private(parent)
        hidden = parent / f".{run_id}.new"
        hidden.mkdir(mode=PRIVATE_DIR)
        lock = Lock.acquire(RunPaths(hidden).lock)
        if lock is None:
            raise UsageError(f"{hidden}: is in use")
        temporary, paths = RunPaths(hidden), RunPaths(parent / run_id)
        try:
            for directory in (
                temporary.logs,
                temporary.scratch,
                temporary.checkpoints,
                temporary.exceptions,
                temporary.stacks,
            ):
                directory.mkdir(mode=PRIVATE_DIR)
            reserve = _Reserve(temporary.reserve)
            events = AppendFile(open_private(temporary.events, os.O_WRONLY | os.O_APPEND), paths.events)
            return cls(paths, lock, name_lock, events, reserve)
        except OSError:
            lock.release()
            shutil.rmtree(hidden, ignore_errors=True)
            raise

    def publish(self, record: RunRecord) -> None:
        """Write the record and rename the directory. From here on every command finds the run."""
        hidden = self.paths.root.with_name(f".{self.paths.run_id}.new")
        try:
            write_atomically(RunPaths(hidden).record, record.model_dump_json(indent=1) + "\n")
            self._events.append(first_line(record))
            hidden.rename(self.paths.root)
            if self.paths.root.parent.resolve() != runs_dir().resolve():
                (runs_dir() / self.paths.run_id).symlink_to(self.paths.root)
        except OSError:
            self.close()
            for made in (hidden, self.paths.root):
                shutil.rmtree(made, ignore_errors=True)
            raise

    def append(self, event: Event) -> None:
        self._events.append(event_line(event))

    def take_failure(self) -> str | None:
        """Return why the run's files cannot be written, once."""
        failure = self._events.failure or self._failure
        if failure is None or self._is_failure_reported:
            return None
        self._is_failure_reported = True
        return failure

    def write_sample(self, at: float, mono: float, tasks: dict[str, dict[str, float]]) -> None:
        try:
            write_atomically(self.paths.sample, json.dumps({"at": at, "mono": mono, "tasks": tasks}))
        except OSError as error:
            # Reported, because the tasks' logs on the same disk fail too and lose lines.
            if self.paths.root.exists():
                reason = storage_reason(self.paths.sample, error)
            else:
                reason = f"{self.paths.root}: was moved or removed"
            self._failure = self._failure or reason

    def write_result(self, result: RunResult) -> None:
        """Write the remaining events, then result.json. `result_is_written` tells whether that succeeded."""
        if not self._events.flush():
            self._reserve.free_event_space()
            self._events.flush()
        text = result.model_dump_json(indent=1) + "\n"
        try:
            write_atomically(self.paths.result, text)
        except OSError:
            try:
                self._reserve.replace(self.paths.reserve, self.paths.result, text.encode())
            except OSError:
                return
        self.result_is_written = True

    def remove_scratch(self) -> None:
        shutil.rmtree(self.paths.scratch, ignore_errors=True)

    def close(self) -> None:
        self._reserve.close()
        for path in (self.paths.reserve, self.paths.control):
            try:
                path.unlink(missing_ok=True)
            except OSError:
                continue  # the file system became read-only; these files do no harm
        self._events.close()
        if self._name_lock is not None:
            self._name_lock.release()
        self._lock.release()
