"""run.json: the run as it was requested, and its supervisor. Written once, readable even when damaged."""

from __future__ import annotations

import calendar
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from orchestrator.core.errors import NewerFormat
from orchestrator.core.job.run_name import RunName, default_name
from orchestrator.store.files import read_bytes, read_object
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
_Pid = Annotated[int, Field(ge=0, lt=2**31)]
_Ticks = Annotated[int, Field(ge=0, lt=2**63)]


class RunRecord(BaseModel):
    """The contents of run.json.

    `directory` is the working directory of `up`, `host` the name of its machine. `started_at` is in Unix seconds,
    `started_mono` in seconds of CLOCK_MONOTONIC. Secrets in `spec` are masked.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: Literal[1] = 1
    id: str
    name: RunName
    directory: str
    started_at: _Finite
    started_mono: _Finite
    boot_id: str
    host: str = ""
    supervisor_pid: _Pid
    supervisor_start_ticks: _Ticks
    checkpoint_dir: str
    versions: dict[str, str]
    spec: dict[str, Any]


_FIELDS: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(field.rebuild_annotation()) for name, field in RunRecord.model_fields.items()
}


@dataclass(frozen=True)
class ReadRecord:
    """A record as far as it could be read. `damage` describes what could not, and is empty for an intact record.

    `knows_checkpoints` is False if checkpoint_dir is only the default.
    """

    record: RunRecord
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


def read_record(paths: RunPaths, run_id: str) -> ReadRecord | None:
    """Return the record of the run known as `run_id`; None if the directory does not belong to a run.

    Fields that run.json lacks come from the first line of the events, then from the directory's name.
    NewerFormat if a later orch wrote either file.
    """
    version = _VERSION.match(read_bytes(paths.events, _VERSION_BYTES) or b"")
    if version is not None:
        refuse_newer(int(version[1]), run_id, "events.jsonl")
    own = read_object(paths.record)
    if own is not None:
        refuse_newer(own.get("schema_version"), run_id, "run.json")
        try:
            return ReadRecord(RunRecord.model_validate(own))
        except ValidationError:
            pass
    copy = _copy_in_events(paths)
    if own is None and copy is None and not _is_run_directory(paths, run_id):
        return None
    readable = {**_readable_fields(own), **_readable_fields(copy)}
    record = _complete(paths, run_id, readable)
    knows_checkpoints = "checkpoint_dir" in readable
    if own is not None and copy is None and _is_older(own):
        return ReadRecord(record, knows_checkpoints=knows_checkpoints)
    source = "the first line of events.jsonl" if copy is not None else "the directory's name"
    damage = f"run.json is damaged or missing; its contents are taken from {source}"
    return ReadRecord(record, damage, knows_checkpoints)


def read_newer_record(paths: RunPaths, run_id: str) -> ReadRecord:
    """Return the record that a later orch wrote, on the assumption that known fields keep their meaning."""
    readable = {**_readable_fields(_copy_in_events(paths)), **_readable_fields(read_object(paths.record))}
    return ReadRecord(_complete(paths, run_id, readable), "", "checkpoint_dir" in readable)


def refuse_newer(version: object, run_id: str, file: str) -> None:
    """Raise NewerFormat for a version that only a later orch writes."""
    if isinstance(version, int) and version > FORMAT:
        raise NewerFormat(
            f"{run_id} was written by a newer orch ({file} has format {version}, this one reads up to {FORMAT}):"
            " use that orch, or upgrade this one"
        )


def _copy_in_events(paths: RunPaths) -> dict[str, Any] | None:
    line, newline, _ = (read_bytes(paths.events, _FIRST_LINE_BYTES) or b"").partition(b"\n")
    document = parse_object(line) if newline else None
    if document is None or document.get("type") != _FIRST_LINE_TYPE:
        return None
    record = document.get("record")
    return record if isinstance(record, dict) else None


def _is_run_directory(paths: RunPaths, run_id: str) -> bool:
    files = (paths.lock, paths.events, paths.logs, paths.result, paths.checkpoints)
    return _RUN_ID.match(run_id) is not None and any(path.exists() for path in files)


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


def _complete(paths: RunPaths, run_id: str, readable: dict[str, Any]) -> RunRecord:
    """Return a record of the readable fields, with defaults from the directory's name. Pid 0 means unknown."""
    match = _RUN_ID.match(run_id)
    mono = _MONO.search(read_bytes(paths.events, _FIRST_LINE_BYTES) or b"")
    defaults: dict[str, Any] = {
        "id": run_id,
        "name": default_name(Path(match["name"] if match else run_id)),
        "directory": "",
        "started_at": _time_of(match["stamp"]) if match else _modified(paths),
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


def _modified(paths: RunPaths) -> float:
    try:
        return max(0.0, paths.root.stat().st_mtime)
    except OSError:
        return 0.0
