"""Create and write the directory of a live run. Only its supervisor does this."""

from __future__ import annotations

import errno
import json
import os
import secrets
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from orchestrator.core.errors import UsageError
from orchestrator.core.state.events import Event, Progress, event_line
from orchestrator.core.state.result import RunResult
from orchestrator.store.directory import Directory
from orchestrator.store.open_files import AppendFile, storage_reason
from orchestrator.store.runs.history_file import HistoryFile
from orchestrator.store.runs.locks import Lock, take_unless_held
from orchestrator.store.runs.lost_runs import remove_unpublished_in
from orchestrator.store.runs.paths import NEW_RUN_DIRECTORIES, RunPaths, make_runs
from orchestrator.store.runs.record import RunRecord, first_line, read_record, recorded_id

# Space reserved for result.json with the log tails of a few tasks, and for the last events of all tasks.
_RESULT_BYTES = 64 << 10
_EVENTS_BYTES = 128 << 10
# Interval at which the lock of a run is tried again.
_LOOK_S = 0.05


def new_run_id(name: str) -> str:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return f"{name}-{stamp}-{secrets.token_hex(2)}"


class _Reserve:
    """A file of allocated blocks, so that a run can write its result on a full disk."""

    def __init__(self, run: Directory, name: str) -> None:
        """Allocate the blocks. OSError if the disk has no space for them."""
        self._run = run
        self._name = name
        self._fd = run.open_private(name, os.O_RDWR | os.O_TRUNC)
        try:
            os.posix_fallocate(self._fd, 0, _RESULT_BYTES + _EVENTS_BYTES)
        except OSError:
            os.close(self._fd)
            run.unlink(name)
            raise

    def free_event_space(self) -> None:
        try:
            os.ftruncate(self._fd, _RESULT_BYTES)
        except OSError:
            return

    def become(self, document: str, data: bytes) -> None:
        """Write `data` into the allocated blocks and rename the file to `document`. OSError."""
        done = 0
        while done < len(data):
            done += os.pwrite(self._fd, data[done:], done)
        os.ftruncate(self._fd, len(data))
        self._run.rename(self._name, document)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass
class RunStore:
    """The directory, lock and event log of one live run, until close(): a new one, or one that waits for a supervisor.

    After publish() or take_over() no method fails. Data that a full disk rejects is kept and written later; the first
    failure is reported once. All is written through the descriptors of the directory that create() made or adopt()
    opened.
    """

    paths: RunPaths
    _parent: Directory
    _run: Directory
    _lock: Lock
    _name_lock: Lock | None
    _events: AppendFile
    _reserve: _Reserve
    _history: HistoryFile
    # Set by publish() and adopt().
    record: RunRecord = field(init=False)
    result_is_written: bool = False
    _is_failure_reported: bool = False
    _failure: str | None = None

    @classmethod
    def create(
        cls, run_id: str, log_dir: Path | None, name_lock: Lock | None, existing: Collection[Path] = ()
    ) -> RunStore:
        """Create the directory under a hidden name and lock it, so that no probe sees the run without its lock.

        `existing`: see Directory.create().
        """
        parent = make_runs()
        if log_dir is not None:
            parent.close()
            parent = Directory.create(log_dir, existing, may_be_shared=True)
        paths = RunPaths(Path(os.path.realpath(parent.path)) / run_id)
        with ExitStack() as undo:
            undo.callback(parent.close)
            remove_unpublished_in(parent)
            run = parent.make_new(paths.hidden_name)
            undo.callback(run.close)
            undo.callback(parent.remove_tree, paths.hidden_name, run.identity)
            lock = Lock.acquire_in(run, paths.lock.name)
            if lock is None:
                raise UsageError(f"{parent.path / paths.hidden_name}: is in use")
            undo.callback(lock.release)
            for name in NEW_RUN_DIRECTORIES:
                run.make_new(name).close()
            reserve = _Reserve(run, paths.reserve.name)
            undo.callback(reserve.close)
            events = run.open_private(paths.events.name, os.O_WRONLY | os.O_APPEND)
            undo.pop_all()
            history = HistoryFile(run, paths.samples.name)
            return cls(
                paths, parent, run, lock, name_lock, AppendFile(events, paths.events), reserve, history
            )

    @classmethod
    def adopt(cls, root: Path, name_lock: Lock | None, patience_s: float = 0.0) -> RunStore:
        """Lock the directory of a run that was published, and that has neither a supervisor nor a result.

        `patience_s`: how long to wait for a process that is about to release the run.
        UsageError if the run is live, has ended or is not there; OSError.
        """
        deadline = time.monotonic() + patience_s
        paths = RunPaths(root)
        with ExitStack() as undo:
            parent = Directory.shared(root.parent)
            undo.callback(parent.close)
            run = paths.open()
            undo.callback(run.close)
            if recorded_id(paths, run) != paths.run_id:
                raise UsageError(f"{root}: is not the directory of a run")
            while (lock := take_unless_held(run, paths.lock.name)) is None:
                if time.monotonic() >= deadline:
                    raise UsageError(f"{root}: its supervisor is live")
                time.sleep(_LOOK_S)
            undo.callback(lock.release)
            read = read_record(paths, run, paths.run_id)
            if read is None:
                raise UsageError(f"{root}: its files were removed")
            if run.exists(paths.result.name):
                raise UsageError(f"{root}: this run has ended")
            run.unlink(paths.control.name)  # of a supervisor that was killed
            for name in NEW_RUN_DIRECTORIES:
                run.make(name).close()
            reserve = _Reserve(run, paths.reserve.name)
            undo.callback(reserve.close)
            events = run.open_private(paths.events.name, os.O_WRONLY | os.O_APPEND)
            undo.pop_all()
            history = HistoryFile(run, paths.samples.name)
            file = AppendFile(events, paths.events)
            store = cls(paths, parent, run, lock, name_lock, file, reserve, history)
            store.record = read.record
            return store

    def take_over(self, record: RunRecord) -> None:
        """Write the record of this process. OSError."""
        self._write_record(record)

    def publish(self, record: RunRecord) -> None:
        """Write the record and rename the directory. From here on every command finds the run."""
        name = self.paths.hidden_name
        try:
            self._write_record(record)
            self._events.append(first_line(record))
            if self._parent.exists(self.paths.run_id):
                raise FileExistsError(errno.EEXIST, "another process made it first", str(self.paths.root))
            self._parent.rename(name, self.paths.run_id)
            name = self.paths.run_id
            self._run.path = self.paths.root
            self.require_place()
            with make_runs() as runs:
                if runs.identity != self._parent.identity:
                    runs.link_to(self.paths.run_id, self.paths.root)
        except BaseException:
            self._parent.remove_tree(name, self._run.identity)
            self.close()
            raise

    def discard(self) -> None:
        """Remove the directory of a run that was not published."""
        self._parent.remove_tree(self.paths.hidden_name, self._run.identity)
        self.close()

    def _write_record(self, record: RunRecord) -> None:
        self._run.write_atomically(self.paths.record.name, record.model_dump_json(indent=1) + "\n")
        self.record = record

    @property
    def directory(self) -> Directory:
        """The run's directory, wherever it is now. The store closes it."""
        return self._run

    def require_place(self) -> None:
        """Check that the run's path still leads to its directory. OSError."""
        status = self.paths.root.lstat()
        if (status.st_dev, status.st_ino) != self._run.identity:
            raise FileNotFoundError(errno.ENOENT, "was moved or removed", str(self.paths.root))

    def append(self, event: Event) -> None:
        self._events.append(event_line(event))

    def take_failure(self) -> str | None:
        """Return why the run's files cannot be written, once."""
        failure = self._events.failure or self._failure
        if failure is None or self._is_failure_reported:
            return None
        self._is_failure_reported = True
        return failure

    def write_sample(
        self,
        at: float,
        mono: float,
        tasks: Mapping[str, Mapping[str, float]],
        progress: Mapping[str, Progress] = MappingProxyType({}),
        attempt: int = 0,
    ) -> None:
        """Replace sample.json: the last measurement, and the latest progress in `attempt`, newer than in the events.

        Write them into the history, too, if a row of it is due."""
        self._history.add(mono - self.record.started_mono, attempt, progress, tasks)
        latest = {task: its.model_dump(mode="json", exclude_defaults=True) for task, its in progress.items()}
        try:
            self.require_place()
            text = json.dumps(
                {"at": at, "mono": mono, "tasks": tasks, "attempt": attempt, "progress": latest}
            )
            self._run.write_atomically(self.paths.sample.name, text)
        except FileNotFoundError:
            self._failure = self._failure or f"{self.paths.root}: was moved or removed"
        except IsADirectoryError:
            pass  # a task has made it; the run continues without measurements
        except OSError as error:
            # Reported, because the tasks' logs on the same disk fail too and lose lines.
            self._failure = self._failure or storage_reason(self.paths.sample, error)

    def end_task(
        self,
        mono: float,
        task: str,
        attempt: int,
        progress: Progress | None,
        usage: Mapping[str, float] | None,
    ) -> None:
        """Add the last progress and measurement of a process to the history, for the next write."""
        self._history.end_task(mono - self.record.started_mono, attempt, task, progress, usage)

    def write_result(self, result: RunResult) -> None:
        """Write the remaining events and history, then result.json.

        `result_is_written` tells whether the latter succeeded."""
        if not self._events.flush():
            self._reserve.free_event_space()
            self._events.flush()
        self._history.flush()
        text = result.model_dump_json(indent=1) + "\n"
        try:
            self._run.write_atomically(self.paths.result.name, text)
        except OSError:
            try:
                self._reserve.become(self.paths.result.name, text.encode())
            except OSError:
                return
        self.result_is_written = True

    def open_log(self, path: Path) -> int:
        """Open a log of orch's own in the run's directory for appending. OSError."""
        return self._run.open_private(path.name, os.O_WRONLY | os.O_APPEND)

    def forget_exception(self, task: str) -> None:
        """Remove the exception of an earlier process of the task. OSError."""
        path = self.paths.task_exception(task)
        with self._run.make(path.parent.name) as directory:
            directory.unlink(path.name)

    def write_exception(self, task: str, text: str) -> None:
        """Write the exception of a task on another host. OSError."""
        path = self.paths.task_exception(task)
        with self._run.make(path.parent.name) as directory:
            directory.write_atomically(path.name, text)

    def remove_scratch(self) -> None:
        self._run.remove_tree(self.paths.scratch.name)

    def close(self) -> None:
        self._reserve.close()
        for path in (self.paths.reserve, self.paths.control):
            try:
                self._run.unlink(path.name)
            except OSError:
                continue  # the file system became read-only; these files do no harm
        self._events.close()
        self._history.close()
        if self._name_lock is not None:
            self._name_lock.release()
        self._lock.release()
        self._run.close()
        self._parent.close()
