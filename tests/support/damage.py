"""Damage to the directory of a run with the tasks worker:0 and worker:1. Each kind takes the directory."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path], object]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _link(path: Path) -> None:
    """Replace a file by a link to it. Links within a run's directory are not followed."""
    elsewhere = path.with_name(f"{path.name}.elsewhere")
    if path.is_file():
        path.rename(elsewhere)
    path.symlink_to(elsewhere)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            listener.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)


def _new(make: Callable[[Path], object]) -> Damage:
    """Remove the file first."""
    return lambda path: (_remove(path), make(path))


def _bytes(data: bytes) -> Damage:
    return _new(lambda path: path.write_bytes(data))


def _data(change: Callable[[bytes], bytes]) -> Damage:
    return lambda path: path.write_bytes(change(path.read_bytes()))


def _lines(change: Callable[[list[bytes]], list[bytes]]) -> Damage:
    return _data(lambda data: b"".join(change(data.splitlines(keepends=True))))


def _fields(*without: str, **changed: object) -> Damage:
    def change(data: bytes) -> bytes:
        document = {**json.loads(data), **changed}
        return json.dumps({name: value for name, value in document.items() if name not in without}).encode()

    return _data(change)


def make_deep_tree(top: Path) -> None:
    """Create a file `note` of 4 KiB below 3,000 directories. Such a path is too long for one system call."""
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("down", dir_fd=fd)
        below = os.open("down", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    with os.fdopen(os.open("note", os.O_WRONLY | os.O_CREAT, dir_fd=fd), "wb") as note:
        note.write(bytes(4096))
    os.close(fd)


_UNKNOWN_EVENT = b'{"at":1.0,"mono":1.0,"type":"somersault","task":"worker:0"}\n'
_INVALID_LINE = b'{"at": 1, "mono": "x\xff\x00\n'
# What may be in the place of any file.
ANY_FILE: dict[str, Damage] = {
    "missing": _remove,
    "empty": _bytes(b""),
    "garbage": _bytes(bytes(range(256)) * 40),
    "nulls": _bytes(bytes(5000)),
    "deep": _bytes(b"[" * 200_000),
    "a list": _bytes(b"[1, 2]"),
    "a directory": _new(Path.mkdir),
    "a pipe": _new(os.mkfifo),
    "a link": _link,
    "a link to itself": _new(lambda path: path.symlink_to(path)),
    "a socket": _new(_socket),
    "sparse": _new(lambda path: (path.touch(), os.truncate(path, 1 << 42))),
    "cut off": _data(lambda data: data[: len(data) // 2]),
}
_ONE_FILE: dict[str, dict[str, Damage]] = {
    "run.json": {
        "without a version": _fields("schema_version"),
        "of version 0 with fewer fields": _fields(
            *("host", "versions", "supervisor_start_ticks", "started_mono", "spec"), schema_version=0
        ),
        "with fields of other types": _fields(
            started_at="today", started_mono=-1, supervisor_pid=[], spec=3, boot_id=0
        ),
        "with invalid numbers": _fields(started_at=float("nan"), started_mono=1e300),
    },
    "events.jsonl": {
        "cut in its last line": _data(lambda data: data[:-7]),
        "without its last newline": _data(lambda data: data[:-1]),
        "with nulls at the end": _data(lambda data: data + bytes(70_000)),
        "with nulls for its last line": _lines(lambda lines: [*lines[:-1], bytes(len(lines[-1]))]),
        "with an invalid line": _lines(lambda lines: [*lines[:5], _INVALID_LINE, *lines[5:]]),
        "with an unknown event": _lines(lambda lines: [lines[0], _UNKNOWN_EVENT, *lines[1:]]),
        "with partial lines": _lines(
            lambda lines: [lines[0], *(line[: len(line) // 3] + line for line in lines[1:])]
        ),
        "without its first line": _lines(lambda lines: lines[1:]),
    },
    "result.json": {"another run's": _fields(run_id="other-20250101T000000Z-abcd", exit_code=0)},
    "sample.json": {
        "of other types": _bytes(
            b'{"tasks": {"worker:0": 5, "worker:1": {"memory_bytes": "x", "cpu_percent": NaN}}}'
        ),
        "of huge numbers": _bytes(
            b'{"tasks": {"worker:0": {"memory_bytes": 1e999, "cpu_percent": %s}}}' % (b"9" * 400)
        ),
    },
    "samples.jsonl": {"of other numbers": _bytes(b'{"time":1e999}\n{"time":1.0,"loss":NaN}\n{"time"')},
    "lock": {},
    "control": {},
    "logs/index": {
        "of implausible records": _bytes(
            b"999999999999.9 worker:0 1 0 5\n1.0 worker:0 999999999 999999999999999999 999999999999999999\n"
            b"1.0 worker:9 1 0 5\n1.0 worker:0 1 7 -1\n"
        )
    },
    "logs/worker-0.log": {},
}


def _at(file: str, damage: Damage) -> Damage:
    return lambda run: damage(run / file)


# Every kind for every file.
ALL_DAMAGES: dict[str, Damage] = {
    f"{file}: {how}": _at(file, damage)
    for file, own in _ONE_FILE.items()
    for how, damage in {**ANY_FILE, **own}.items()
}
# Each file and each kind once.
DAMAGES: dict[str, Damage] = {
    name: ALL_DAMAGES[name]
    for name in (
        *("run.json: missing", "run.json: cut off", "run.json: of version 0 with fewer fields"),
        *("run.json: with fields of other types", "events.jsonl: missing", "events.jsonl: a pipe"),
        *("events.jsonl: garbage", "events.jsonl: cut in its last line", "events.jsonl: with partial lines"),
        *("events.jsonl: with nulls for its last line", "result.json: cut off", "result.json: another run's"),
        *("result.json: deep", "sample.json: of other types", "samples.jsonl: of other numbers"),
        *("lock: missing", "lock: a directory", "control: a link to itself", "logs/index: garbage"),
        *("logs/index: of implausible records", "logs/worker-0.log: a pipe", "logs/worker-0.log: a link"),
    )
}
