"""Damage to the files of a run: each entry applies one kind to a file of an ended run."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from orchestrator.store.runs.paths import RunPaths

Damage = Callable[[RunPaths], None]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _directory(path: Path) -> None:
    _remove(path)
    path.mkdir()


def _pipe(path: Path) -> None:
    _remove(path)
    os.mkfifo(path)


def _link(path: Path) -> None:
    """Replace a file by a link to it. Links within a run's directory are not followed."""
    elsewhere = path.with_name(f"{path.name}.elsewhere")
    if path.is_file():
        path.rename(elsewhere)
    path.symlink_to(elsewhere)


def _loop(path: Path) -> None:
    _remove(path)
    path.symlink_to(path)


def _socket(path: Path) -> None:
    _remove(path)
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            listener.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)


def _bytes(data: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        _remove(path)
        path.write_bytes(data)

    return write


def _cut_off(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _cut_last_line(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _without_last_newline(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _append_nulls(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(70_000))


def _last_line_of_nulls(path: Path) -> None:
    *lines, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines) + bytes(len(last)))


def _insert_invalid_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines.insert(len(lines) // 2, b'{"at": 1, "mono": "x\xff\x00\n')
    path.write_bytes(b"".join(lines))


def _insert_partial_lines(path: Path) -> None:
    first, *lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + b"".join(line[: len(line) // 3] + line for line in lines))


def _insert_unknown_event(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines.insert(1, b'{"at":1.0,"mono":1.0,"type":"somersault","task":"worker:0"}\n')
    path.write_bytes(b"".join(lines))


def _without_first_line(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))


def _changed(**fields: object) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return change


def _without(*fields: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        document = json.loads(path.read_text())
        path.write_text(json.dumps({name: value for name, value in document.items() if name not in fields}))

    return change


_ANY_FILE: dict[str, Callable[[Path], None]] = {
    "missing": _remove,
    "empty": _bytes(b""),
    "garbage": _bytes(bytes(range(256)) * 40),
    "nulls": _bytes(bytes(5000)),
    "deep": _bytes(b"[" * 200_000),
    "a list": _bytes(b"[1, 2]"),
    "a directory": _directory,
    "a pipe": _pipe,
    "a link": _link,
    "a link to itself": _loop,
    "a socket": _socket,
}
_DOCUMENT = {**_ANY_FILE, "cut off": _cut_off}
RECORD = {
    **_DOCUMENT,
    "without a version": _without("schema_version"),
    "of version 0": _changed(schema_version=0),
    "of version 0 with fewer fields": lambda path: (
        _changed(schema_version=0)(path),
        _without("host", "versions", "supervisor_start_ticks", "started_mono", "spec")(path),
    ),
    "with fields of other types": _changed(
        started_at="today", started_mono=-1, supervisor_pid=[], spec=3, boot_id=0
    ),
    "with invalid numbers": _changed(started_at=float("nan"), started_mono=1e300),
}
EVENTS = {
    **_ANY_FILE,
    "cut in its last line": _cut_last_line,
    "without its last newline": _without_last_newline,
    "with nulls at the end": _append_nulls,
    "with nulls for its last line": _last_line_of_nulls,
    "with an invalid line": _insert_invalid_line,
    "with partial lines": _insert_partial_lines,
    "with an unknown event": _insert_unknown_event,
    "without its first line": _without_first_line,
}
RESULT = {**_DOCUMENT, "another run's": _changed(run_id="other-20250101T000000Z-abcd", exit_code=0)}
SAMPLE = {
    **_DOCUMENT,
    "of other types": _bytes(
        b'{"tasks": {"worker:0": 5, "worker:1": {"memory_bytes": "x", "cpu_percent": NaN}}}'
    ),
    "of huge numbers": _bytes(
        b'{"tasks": {"worker:0": {"memory_bytes": 1e999, "cpu_percent": %s}}}' % (b"9" * 400)
    ),
}
LOCK = dict(_ANY_FILE)
CONTROL = {"stale": _socket, "a link": _loop, "a directory": _directory, "a file": _bytes(b"")}
INDEX = {
    **_ANY_FILE,
    "cut off": _cut_off,
    "of implausible records": _bytes(
        b"999999999999.9 worker:0 1 0 5\n1.0 worker:0 999999999 999999999999999999 999999999999999999\n"
        b"1.0 worker:9 1 0 5\n1.0 worker:0 1 7 -1\n"
    ),
}
LOG = {name: _ANY_FILE[name] for name in ("missing", "a directory", "a pipe", "a link", "a link to itself")}


def record(how: str) -> Damage:
    return lambda paths: RECORD[how](paths.record)


def file_of(paths: RunPaths, which: str) -> Path:
    """Return the path of a file by its name in TABLES."""
    return {
        "run.json": paths.record,
        "events.jsonl": paths.events,
        "result.json": paths.result,
        "sample.json": paths.sample,
        "samples.jsonl": paths.samples,
        "lock": paths.lock,
        "control": paths.control,
        "index": paths.logs / "index",
        "log": paths.task_log("worker:0"),
    }[which]


TABLES: dict[str, dict[str, Callable[[Path], None]]] = {
    "run.json": RECORD,
    "events.jsonl": EVENTS,
    "result.json": RESULT,
    "sample.json": SAMPLE,
    "lock": LOCK,
    "control": CONTROL,
    "index": INDEX,
    "log": LOG,
}
EVERY = [(which, how) for which, table in TABLES.items() for how in table]
# Cases of the quick tests: one of each kind.
FEW = {
    ("run.json", "missing"),
    ("run.json", "cut off"),
    ("run.json", "of version 0 with fewer fields"),
    ("events.jsonl", "missing"),
    ("events.jsonl", "a pipe"),
    ("events.jsonl", "with nulls for its last line"),
    ("events.jsonl", "with partial lines"),
    ("result.json", "cut off"),
    ("result.json", "another run's"),
    ("sample.json", "of other types"),
    ("lock", "missing"),
    ("control", "a link"),
    ("index", "garbage"),
    ("log", "a pipe"),
}
FEWEST = {("run.json", "cut off"), ("events.jsonl", "a pipe"), ("lock", "missing")}


def cases(quick: set[tuple[str, str]], without: tuple[str, ...] = ()) -> list[ParameterSet]:
    """Return all cases, except for the files in `without`. All but the `quick` ones are marked slow."""
    return [
        pytest.param(which, how, marks=() if (which, how) in quick else pytest.mark.slow, id=f"{which} {how}")
        for which, how in EVERY
        if which not in without
    ]
