"""run.json: the run as it was requested, and its supervisor. Readable even when damaged.

Written when the run is created, and again when a supervisor takes over a run that waited for its Slurm job.
"""

from __future__ import annotations

import calendar
import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from orchestrator.core.errors import NewerFormat
from orchestrator.core.job.run_name import RunName, default_name
from orchestrator.core.state.result import Pid
from orchestrator.store.directory import Directory
from orchestrator.store.open_files import parse_object
from orchestrator.store.runs.paths import RunPaths

# The format that this version writes. Files with a greater number are refused; older ones are read field by field.
FORMAT = 1
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FIRST_LINE_TYPE = "run_created"
FIRST_LINE_BEGINS = b'{"type":"%b"' % _FIRST_LINE_TYPE.encode()
# Read limits; the first is enough for a spec with a few thousand variables.
_FIRST_LINE_BYTES = 4 << 20
_VERSION_BYTES = 256
_VERSION = re.compile(re.escape(FIRST_LINE_BEGINS) + rb',"schema_version":(\d{1,9})[,}]')
_RUN_ID = re.compile(r"(?P<name>.+)-(?P<stamp>\d{8}T\d{6}Z)-[0-9a-f]{4}\Z", re.DOTALL)
_MONO = re.compile(rb'"mono":(\d{1,12}(?:\.\d{1,12})?)[,}]')

_Finite = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1e12)]
_Ticks = Annotated[int, Field(ge=0, lt=2**63)]


class RunRecord(BaseModel):
    """The contents of run.json.

    `directory` is the working directory of `up`, `host` the name of its machine. `started_at` is in Unix seconds,
    `started_mono` in seconds of CLOCK_MONOTONIC on that machine. Secrets in `spec` are masked. `job`: the Slurm job on
    whose node the supervisor runs, or will run; `cluster`: the name of its cluster. `job_mark`: a secret of a job that
    orch submitted (see marked_comment()); empty for another job, which orch does not cancel. `continues`: the id of the
    run that the job had begun before Slurm started it again.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    schema_version: Literal[1] = 1
    id: str
    name: RunName
    directory: str
    started_at: _Finite
    started_mono: _Finite
    boot_id: str
    host: str = ""
    supervisor_pid: Pid
    supervisor_start_ticks: _Ticks
    checkpoint_dir: str
    versions: dict[str, str]
    spec: dict[str, Any]
    job: Annotated[str, Field(pattern=r"^[0-9]{1,12}(_[0-9]{1,12})?$")] | None = None
    job_mark: Annotated[str, Field(pattern=r"^[0-9a-f]{0,64}$")] = ""
    cluster: str = ""
    continues: str = ""


# Each validator is built on first use: an intact record needs none of them.
_FIELDS: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(field.rebuild_annotation(), config=ConfigDict(defer_build=True))
    for name, field in RunRecord.model_fields.items()
}


@dataclass(frozen=True)
class ReadRecord:
    """A record as far as it could be read. `damage` describes what could not, and is empty for an intact record.

    `recorded_id` is the run's id as one of its files has it; None if no file does, so that only the directory's name
    is known. `knows_checkpoints` is False if checkpoint_dir is only the default.
    """

    record: RunRecord
    recorded_id: str | None
    damage: str = ""
    knows_checkpoints: bool = True


def boot_id() -> str:
    """Return the id of the current boot, empty if unknown. Pids and monotonic times are valid within one boot."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def first_line(record: RunRecord) -> bytes:
    """Return the first line of events.jsonl. It is not an event: it has the format's version and a copy of run.json."""
    line = {
        "type": _FIRST_LINE_TYPE,
        "schema_version": FORMAT,
        "at": record.started_at,
        "mono": record.started_mono,
        "record": record.model_dump(mode="json"),
    }
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def read_record(paths: RunPaths, run: Directory, run_id: str) -> ReadRecord | None:
    """Return the record of the run known as `run_id` in the open directory `run`; None if it is not a run's.

    Fields that run.json lacks come from the first line of the events, then from the directory's name.
    NewerFormat if a later orch wrote either file.
    """
    version = _VERSION.match(run.read_bytes(paths.events.name, _VERSION_BYTES) or b"")
    if version is not None:
        refuse_newer(int(version[1]), run_id, "events.jsonl")
    own = run.read_object(paths.record.name)
    if own is not None:
        refuse_newer(own.get("schema_version"), run_id, "run.json")
        try:
            record = RunRecord.model_validate(own)
            return ReadRecord(record, record.id)
        except ValidationError:
            pass
    copy = _copy_in_events(paths, run)
    if own is None and copy is None and not _is_run_directory(paths, run, run_id):
        return None
    readable = {**_readable_fields(own), **_readable_fields(copy)}
    recorded_id = readable.get("id") or _id_in_result(paths, run)
    record = _complete(paths, run, run_id, readable)
    knows_checkpoints = "checkpoint_dir" in readable
    if own is not None and copy is None and _is_older(own):
        return ReadRecord(record, recorded_id, knows_checkpoints=knows_checkpoints)
    source = "the first line of events.jsonl" if copy is not None else "the directory's name"
    damage = f"run.json is damaged or missing; its contents are taken from {source}"
    return ReadRecord(record, recorded_id, damage, knows_checkpoints)


def recorded_id(paths: RunPaths, run: Directory) -> str | None:
    """Return the id of the run to which the files of an open directory belong; None if none of them says it."""
    own, copy = run.read_object(paths.record.name), _copy_in_events(paths, run)
    readable = {**_readable_fields(copy), **_readable_fields(own)}
    return readable.get("id") or _id_in_result(paths, run)


def read_newer_record(paths: RunPaths, run: Directory, run_id: str) -> ReadRecord:
    """Return the record that a later orch wrote, on the assumption that known fields keep their meaning."""
    own = run.read_object(paths.record.name)
    readable = {**_readable_fields(_copy_in_events(paths, run)), **_readable_fields(own)}
    record = _complete(paths, run, run_id, readable)
    return ReadRecord(record, readable.get("id"), "", "checkpoint_dir" in readable)


def refuse_newer(version: object, run_id: str, file: str) -> None:
    """Raise NewerFormat for a version that only a later orch writes."""
    if isinstance(version, int) and version > FORMAT:
        raise NewerFormat(
            f"{run_id} was written by a newer orch ({file} has format {version}, this one reads up to {FORMAT}):"
            " use that orch, or upgrade this one"
        )


def _copy_in_events(paths: RunPaths, run: Directory) -> dict[str, Any] | None:
    line, newline, _ = (run.read_bytes(paths.events.name, _FIRST_LINE_BYTES) or b"").partition(b"\n")
    document = parse_object(line) if newline else None
    if document is None or document.get("type") != _FIRST_LINE_TYPE:
        return None
    record = document.get("record")
    return record if isinstance(record, dict) else None


def _id_in_result(paths: RunPaths, run: Directory) -> str | None:
    run_id = (run.read_object(paths.result.name) or {}).get("run_id")
    return run_id if isinstance(run_id, str) else None


def _is_run_directory(paths: RunPaths, run: Directory, run_id: str) -> bool:
    """True for a directory without a record that is a run by its own name and contents. It is not changed."""
    files = (paths.lock, paths.events, paths.logs, paths.result, paths.checkpoints)
    is_named_so = _RUN_ID.match(run_id) is not None and paths.root.name == run_id
    return is_named_so and any(run.exists(path.name) for path in files)


def _is_older(document: dict[str, Any]) -> bool:
    version = document.get("schema_version", 0)
    return isinstance(version, int) and version < FORMAT


def _readable_fields(document: dict[str, Any] | None) -> dict[str, Any]:
    found = {}
    for name, adapter in _FIELDS.items():
        try:
            found[name] = adapter.validate_python((document or {})[name])
        except (KeyError, ValidationError):
            continue
    return found


def _complete(paths: RunPaths, run: Directory, run_id: str, readable: dict[str, Any]) -> RunRecord:
    """Return a record of the readable fields, with defaults from the directory's name. Pid 0 means unknown."""
    match = _RUN_ID.match(run_id)
    mono = _MONO.search(run.read_bytes(paths.events.name, _FIRST_LINE_BYTES) or b"")
    defaults: dict[str, Any] = {
        "id": run_id,
        "name": default_name(Path(match["name"] if match else run_id)),
        "directory": "",
        "started_at": _time_of(match["stamp"]) if match else max(0.0, os.fstat(run.fd).st_mtime),
        "started_mono": float(mono[1]) if mono else 0.0,
        "boot_id": "",
        "supervisor_pid": 0,
        "supervisor_start_ticks": 0,
        "checkpoint_dir": str(paths.checkpoints),
        "versions": {},
        "spec": {},
    }
    return RunRecord.model_validate({**defaults, **readable, "schema_version": 1})


def _time_of(stamp: str) -> float:
    try:
        return float(max(0, calendar.timegm(time.strptime(stamp, "%Y%m%dT%H%M%SZ"))))
    except ValueError:
        return 0.0
