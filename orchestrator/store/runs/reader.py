"""Read one run while it is live or long after its end, whatever damage its files have."""

from __future__ import annotations

import errno
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from orchestrator.core.errors import NewerFormat
from orchestrator.core.progress.history_rows import History, HistoryRow, to_columns
from orchestrator.core.state.events import Event, JobStarted, Progress
from orchestrator.core.state.fold import apply
from orchestrator.core.state.result import RunResult
from orchestrator.core.state.state import Queued, RunPhase, RunState, TaskPhase, TaskState
from orchestrator.core.text.durations import format_duration
from orchestrator.store.directory import Directory
from orchestrator.store.files import SharedFile, exists, read_bytes, read_object
from orchestrator.store.open_files import parse_object
from orchestrator.store.runs import run_end
from orchestrator.store.runs.event_file import EVENT_BEGINS, EventTail
from orchestrator.store.runs.history_file import TaskRows, read_rows
from orchestrator.store.runs.liveness import (
    Liveness,
    has_end_event,
    is_of_this_boot,
    is_of_this_host,
    liveness_of,
)
from orchestrator.store.runs.locks import Held, probe, probe_open
from orchestrator.store.runs.paths import RunPaths
from orchestrator.store.runs.record import FIRST_LINE_BEGINS, RunRecord, read_record, refuse_newer

# Bound for a plausible number of bytes or percent.
_MAX_USAGE = 1e18
# Seconds without a sample after which the silence is shown. An NFS client may find an older file for 60 s.
_SILENT_S = 60.0
_EVENTS_BEGIN = (FIRST_LINE_BEGINS, EVENT_BEGINS)
Usage = dict[str, dict[str, float]]


@dataclass
class RunView:
    """A run as a client sees it. open() reads the record only; refresh() updates `state`.

    `damage` describes what of the record is unreadable. `knows_checkpoints` is False if checkpoint_dir is a guess.
    `is_original` is False for a copied or renamed directory, and for one whose files do not name the run: no process
    belongs to it, and nothing in it is changed. `identity`: device and inode of the directory.
    """

    paths: RunPaths
    record: RunRecord
    damage: str
    knows_checkpoints: bool
    is_original: bool
    has_id: bool
    identity: tuple[int, int]
    state: RunState = field(default_factory=RunState, init=False)
    _events: EventTail = field(init=False)
    _last_mono: float = field(init=False)
    _lock_file: SharedFile = field(init=False)
    _refreshing: threading.Lock = field(default_factory=threading.Lock, init=False)
    # sample.json and the state, and what latest() has made of them.
    _latest: tuple[bytes | None, RunState, tuple[RunState, Usage]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._events = EventTail(self.paths.events)
        self._last_mono = self.record.started_mono
        self._lock_file = SharedFile(self.paths.lock)

    @classmethod
    def open(cls, paths: RunPaths, run_id: str | None = None) -> RunView | None:
        """Return the run known as `run_id` (default: its directory's name); None if the directory is not a run's.

        NewerFormat if a later orch wrote it; NotOurs, OSError if the directory cannot be used.
        """
        known_as = run_id or paths.run_id
        try:
            run = paths.open()
        except (FileNotFoundError, NotADirectoryError):
            return None
        with run:
            run.require_search()
            read = read_record(paths, run, known_as)
            identity = run.identity
        if read is None:
            return None
        is_original = read.recorded_id == known_as == paths.run_id
        record = read.record
        if record.id != known_as:
            record = record.model_copy(update={"id": known_as})
        has_id = read.recorded_id is not None
        return cls(paths, record, read.damage, read.knows_checkpoints, is_original, has_id, identity)

    def open_to_change(self) -> Directory:
        """Open the directory that the record was read from. NotOurs, OSError if another one is in its place."""
        run = self.paths.open()
        if run.identity != self.identity:
            run.close()
            raise FileNotFoundError(errno.ENOENT, "was replaced by another directory", str(self.paths.root))
        return run

    @property
    def is_live(self) -> bool:
        """True if the run is live or its liveness is unknown. Either way it must be left alone."""
        return self.liveness is not Liveness.DEAD

    @property
    def liveness(self) -> Liveness:
        held = self._probe()
        return liveness_of(self.record, self.paths, held, self.is_original, self._has_recorded_end)

    def _probe(self) -> Held:
        with self._lock_file.if_open() as fd:
            return probe_open(fd) if fd >= 0 else probe(self.paths.lock)

    @property
    def can_be_swept(self) -> bool:
        """True if the run is dead, and local processes with its id certainly belong to it."""
        return (
            self.liveness is Liveness.DEAD
            and self.is_original
            and is_of_this_host(self.record)
            and (not self.record.boot_id or is_of_this_boot(self.record))
        )

    @property
    def can_be_closed(self) -> bool:
        """True if the run is dead, and this machine may write its result into this directory."""
        return self.is_original and self._is_dead_here()

    def end_of_job(self) -> str | None:
        """Say what happened to the Slurm job of a dead run; None without one."""
        if self.record.job is None:
            return None
        from orchestrator.store.runs.slurm_jobs import NOT_SHARED, job_status

        status = job_status(self.record.job, self.record.cluster, self.record.job_mark)
        if status.exit_code == NOT_SHARED:
            place = self.paths.root.parent
            return (
                f"{place} is not on the nodes of Slurm's job {self.record.job}; name a directory that all nodes share"
                " (XDG_STATE_HOME, --log-dir)"
            )
        log = f"; see {self.paths.job_log}" if status.exit_code and exists(self.paths.job_log) else ""
        was_started = status.state == "NODE_FAIL" and self.record.supervisor_pid
        where = f"; the supervisor was on node {self.record.host}" if was_started else ""
        return status.end and f"Slurm's job {self.record.job} {status.end}{where}{log}"

    @property
    def can_be_removed(self) -> bool:
        """True if this version of orch on this machine knows that the run is over."""
        try:
            has_result = self.result() is not None
        except NewerFormat:
            return False
        return self.liveness is Liveness.DEAD if has_result else self._is_dead_here()

    def _is_dead_here(self) -> bool:
        # About a job, Slurm knows more than the machine that its supervisor was on.
        is_known_here = self.record.job is not None or is_of_this_host(self.record)
        return self.liveness is Liveness.DEAD and is_known_here

    @property
    def is_same_boot(self) -> bool:
        """True if the machine has not restarted since. Only then are the run's pids and monotonic times valid."""
        if not self.record.boot_id:
            return self.liveness is Liveness.LIVE
        return is_of_this_boot(self.record) and (self.record.job is None or is_of_this_host(self.record))

    @contextmanager
    def keep_open(self) -> Iterator[None]:
        """Keep the run's files open, so that it can be observed even if its directory is moved or removed."""
        with self._lock_file.opened(), self._events.keep_open():
            yield

    def refresh(
        self, after_each: Callable[[RunState, Event], object] = lambda state, event: None
    ) -> list[Event]:
        """Apply the new events to `state` and return them, without progress that a later event replaces.

        A run whose supervisor died becomes `lost`. If several threads call this, each event is returned to one.
        `after_each` is called after each event that is applied.
        """
        with self._refreshing:
            return self._refresh(after_each)

    def _refresh(self, after_each: Callable[[RunState, Event], object]) -> list[Event]:
        live = self.is_live  # before reading, so that events written just before the end are read too
        events = self._events.read()
        if not live:
            events += self._events.read_unterminated()
        for event in events:
            if math.isfinite(event.mono):
                self._last_mono = event.mono
            try:
                self.state = apply(self.state, event)
            except (KeyError, ValueError):
                continue  # its task was planned in a damaged line, or this version does not know the outcome
            after_each(self.state, event)
            if isinstance(event, JobStarted):
                self._reread_record()
        if live and self.record.job is not None and not self.state.phase.is_end:
            self.state = self._state_in_job(self.record.job)
        elif live and self._events_are_missing():
            # Events existed when the run began, so it has progressed beyond starting.
            self.state = replace(self.state, phase=RunPhase.RUNNING)
        # The exit of a lost task may be in a line that this version cannot read.
        lacks_exits = bool(events) and self.state.tasks.count((TaskPhase.LOST,)) > 0
        if not live and (lacks_exits or not self.state.phase.is_end):
            if (result := self.result()) is not None:
                self.state = run_end.end_as_in_result(self.state, result, self._last_mono)
            elif not self.state.phase.is_end:
                self.state = run_end.mark_lost(self.state, self._last_mono)
        return events

    @property
    def has_ended(self) -> bool:
        """True if the run's end is recorded, in its result or in its events."""
        return self._has_recorded_end()

    def _why_lost(self) -> str:
        result = self.result()
        if result is not None and result.cause is not None:
            return result.cause.text
        return self.end_of_job() or f"Slurm does not say what happened to its job {self.record.job}"

    def _reread_record(self) -> None:
        """Read the record again, because a supervisor may have taken over the run, which waited for its job."""
        fresh = RunView.open(self.paths, self.record.id)
        if fresh is not None:
            self.record = fresh.record

    def _state_in_job(self, job: str) -> RunState:
        """Return the state of a live run, which may wait for its job, for the first time or again."""
        if self._probe() is Held.YES:
            return self.state
        from orchestrator.store.runs.slurm_jobs import JobPhase, job_status

        status = job_status(job, self.record.cluster, self.record.job_mark)
        was_started = self.record.supervisor_pid > 1
        if status.phase is JobPhase.WAITING or (status.phase is JobPhase.UNKNOWN and not was_started):
            queued = Queued(job, status.reason, status.start)
            return replace(self.state, phase=RunPhase.QUEUED, queued=queued)
        if status.phase is JobPhase.RUNNING and self.state.phase is RunPhase.QUEUED:
            return replace(self.state, phase=RunPhase.STARTING, queued=None)
        return self.state

    @property
    def is_trimmed(self) -> bool:
        """True if `orch prune` removed all but the result and the checkpoints."""
        paths = self.paths
        return not exists(paths.events) and not exists(paths.logs) and exists(paths.result)

    def remarks(self) -> list[str]:
        """Return sentences for users about missing or doubtful information. Call refresh() before."""
        said = [self.damage] if self.damage else []
        if not self.has_id:
            said.append("no file of this directory names the run, so nothing in it is changed or removed")
        elif not self.is_original:
            said.append("this is a copy of a run's directory, or one that was renamed")
        if self.state.phase is RunPhase.LOST and self.record.job is not None:
            said += [self._why_lost()]
        if self.liveness is Liveness.UNKNOWN:
            said.append(f"whether the run is live is unknown: {self.paths.lock} cannot be checked from here")
        if (silent_s := self._silent_s()) > _SILENT_S:
            silence = format_duration(round(silent_s))
            said.append(f"no sign from the supervisor for {silence}, on node {self.record.host}")
        if self.is_trimmed:
            said.append("its events and logs have been removed; this is what its result says")
        elif self._events_are_missing():
            said.append(
                "events.jsonl is missing or damaged: little more is known than whether the run is live"
            )
        return said

    def _silent_s(self) -> float:
        """Seconds since the last sample of a supervisor on another machine, which writes them while tasks run."""
        is_expected = self.record.job is not None and self.state.phase is RunPhase.RUNNING
        at = (read_object(self.paths.sample) or {}).get("at") if is_expected else None
        is_time = isinstance(at, int | float) and abs(at) < _MAX_USAGE
        return time.time() - at if at is not None and is_time else 0.0

    def result(self) -> RunResult | None:
        """Return the contents of result.json; None if it is missing, damaged or another run's.

        NewerFormat if a later orch wrote it.
        """
        document = read_object(self.paths.result)
        if document is None:
            return None
        refuse_newer(document.get("schema_version"), self.record.id, "result.json")
        try:
            result = RunResult.model_validate({**document, "schema_version": 1})
        except ValidationError:
            return None
        return result if not self.is_original or result.run_id == self.record.id else None

    def sample(self) -> Usage:
        """Return the last measurement as {task: {cpu_percent, memory_bytes}}; empty for a run that has ended."""
        return self.latest()[1]

    def latest(self) -> tuple[RunState, Usage]:
        """Return the state with progress that may be newer than its event, and the last measurement, as sample().

        An event of progress is written once a second. The objects are the same until there is something new."""
        state = self.state
        if state.phase.is_end:
            return state, {}
        data = read_bytes(self.paths.sample)
        known = self._latest
        if known is None or known[0] != data or known[1] is not state:
            known = self._latest = data, state, _read_sample(data, state)
        return known[2]

    def history(self) -> History:
        """Return progress and measurements of all tasks over time; empty columns if there are none."""
        rows = read_rows(self.paths)
        return to_columns([*rows, *self._newer_rows({row.task: row.time for row in rows})])

    def history_of_tasks(self, most_rows: int) -> Iterator[tuple[str, list[HistoryRow]]]:
        """Yield the same as rows of each task, in plan order: at most about `most_rows` of all tasks together, evenly
        chosen. Only one task is in memory at a time."""
        places = {task: place for place, task in enumerate(self.state.tasks)}
        with TaskRows(self.paths) as rows:
            newer = {row.task: row for row in self._newer_rows(rows.last)}
            tasks = dict.fromkeys((*rows.last, *newer))
            most = max(2, most_rows // max(1, len(tasks)))
            for task in sorted(tasks, key=lambda task: places.get(task, len(places))):
                yield task, [*rows.read(task, most), *([newer[task]] if task in newer else [])]

    def _newer_rows(self, last: Mapping[str, float]) -> Iterator[HistoryRow]:
        """Yield the last measurement of tasks that ran then and have no row that is as new. `last` are the times of
        their last rows."""
        document = read_object(self.paths.sample) or {}
        tasks, latest = document.get("tasks"), document.get("progress")
        try:
            time_s, attempt = float(document["mono"]) - self.record.started_mono, int(document["attempt"])
        except (KeyError, TypeError, ValueError, OverflowError):
            return
        for task, usage in tasks.items() if isinstance(tasks, dict) else ():
            progress = _progress(latest.get(task)) if isinstance(latest, dict) else None
            row = HistoryRow.of(time_s, task, attempt, progress, _figures(usage))
            if row is not None and row.time > last.get(task, 0.0):
                yield row

    def now_mono(self) -> float:
        """Return the monotonic time at which uptimes end; the start of the run if it belongs to another boot.

        For a run in a Slurm job it is that of the supervisor's machine, by the wall clock."""
        if self.is_same_boot:
            return time.monotonic()
        age_s = time.time() - self.record.started_at if self.record.job is not None else 0.0
        return self.record.started_mono + max(0.0, age_s)

    def _events_are_missing(self) -> bool:
        if self.state.attempt:
            return False
        return not (read_bytes(self.paths.events, len(FIRST_LINE_BEGINS)) or b"").startswith(_EVENTS_BEGIN)

    def _has_recorded_end(self) -> bool:
        if self.state.phase.is_end:
            return True
        try:
            if self.result() is not None:
                return True
        except NewerFormat:
            return True
        return has_end_event(self.paths)


def _read_sample(data: bytes | None, state: RunState) -> tuple[RunState, Usage]:
    """Return the state with the progress in sample.json, and the measurement."""
    document = parse_object(data or b"") or {}
    tasks = document.get("tasks")
    usage = tasks.items() if isinstance(tasks, dict) else ()
    figures = {str(task): _figures(of_task) for task, of_task in usage}
    if document.get("attempt") != state.attempt:
        return state, figures
    return _with_progress(state, document.get("progress")), figures


def _with_progress(state: RunState, latest: object) -> RunState:
    changed: dict[str, TaskState] = {}
    for name, document in latest.items() if isinstance(latest, dict) else ():
        task = state.tasks.get(name)
        if task is None or not task.is_live:
            continue
        progress = _progress(document)
        if progress is not None and progress != task.progress:
            changed[name] = replace(task, progress=progress)
    return state.with_tasks({**state.tasks, **changed}.values()) if changed else state


def _progress(document: object) -> Progress | None:
    try:
        return Progress.model_validate(document)
    except ValidationError:
        return None


def _figures(usage: object) -> dict[str, float]:
    return {
        str(name): value
        for name, value in (usage.items() if isinstance(usage, dict) else ())
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_USAGE
    }
