"""Prints the time of each task by what it did, and the tasks it waited for: `summarize_profile.py DIRECTORY`.

DIRECTORY has the profiles of an attempt: TASK.xplane.pb and TASK.json (worker/bootstrap/profiling.py). The format is
tsl/profiler/protobuf/xplane.proto; it is read without TensorFlow.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_MOST_BYTES = 256 << 20
_OPERATION = re.compile(r"[^\s:]+:([A-Z]\w*)\Z")
_COLLECTIVE = re.compile(r"Collective|AllReduce|AllGather|ReduceScatter|nccl", re.IGNORECASE)
_INPUT = re.compile(r"Iterator|Dataset")
_INPUT_LINE = "tf_data"
_DEVICES = ("/device:GPU", "/device:TPU")
_HOST, _FACTS = "/host:CPU", "Task Environment"
_START, _STOP = "profile_start_time", "profile_stop_time"

Span = tuple[float, float]


@dataclass
class Recording:
    """The times of a task: spans in nanoseconds since 1970. `collectives`: by the name of the operation."""

    start: float = 0.0
    stop: float = 0.0
    compute: list[Span] = field(default_factory=list)
    input: list[Span] = field(default_factory=list)
    collectives: dict[str, list[Span]] = field(default_factory=dict)


# -- the protocol buffer


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: number, and the value as a number or as bytes."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        match key & 7:
            case 0:
                value, at = _varint(data, at)
                yield key >> 3, value
            case 2:
                length, at = _varint(data, at)
                yield key >> 3, data[at : at + length]
                at += length
            case 1 | 5 as kind:
                length = 8 if kind == 1 else 4
                yield key >> 3, data[at : at + length]
                at += length
            case kind:
                raise ValueError(f"wire type {kind}")


def _values(data: bytes) -> dict[int, int | bytes]:
    return dict(fields(data))


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _names(entries: Iterable[bytes]) -> dict[int, str]:
    """The names in a map from ids to metadata."""
    found = {}
    for entry in entries:
        pair = _values(entry)
        metadata = pair.get(2)
        if isinstance(metadata, bytes):
            found[_number(pair.get(1))] = _text(_values(metadata).get(2))
    return found


# -- a recording


def read(data: bytes) -> Recording:
    planes = [_plane(value) for number, value in fields(data) if number == 1 and isinstance(value, bytes)]
    recording = Recording()
    for name, parts in planes:
        if name == _FACTS:
            stats = _names(parts.get(5, ()))
            values = {}
            for stat in map(_values, parts.get(6, ())):
                values[stats.get(_number(stat.get(1)), "")] = _number(stat.get(3) or stat.get(4))
            recording.start, recording.stop = float(values.get(_START, 0)), float(values.get(_STOP, 0))
    for name, parts in planes:
        if name == _HOST or name.startswith(_DEVICES):
            events = _names(parts.get(4, ()))
            for line in parts.get(3, ()):
                _add_line(recording, name, line, events)
    return recording


def _plane(data: bytes) -> tuple[str, dict[int, list[bytes]]]:
    name = ""
    parts: dict[int, list[bytes]] = {}
    for number, value in fields(data):
        if number == 2:
            name = _text(value)
        elif isinstance(value, bytes):
            parts.setdefault(number, []).append(value)
    return name, parts


def _add_line(recording: Recording, plane: str, data: bytes, names: dict[int, str]) -> None:
    values = _values(data)
    line, start = _text(values.get(2)), recording.start + _number(values.get(3))
    is_device = plane != _HOST
    if is_device and not line.startswith("Stream"):
        return
    for number, event in fields(data):
        if number != 4 or not isinstance(event, bytes):
            continue
        found = _values(event)
        name = names.get(_number(found.get(1)), "")
        begin = start + _number(found.get(2)) / 1000
        span = (begin, begin + _number(found.get(3)) / 1000)
        operation = _OPERATION.match(name)
        kind = operation[1] if operation else name if is_device else ""
        if line.startswith(_INPUT_LINE) or _INPUT.search(kind):
            recording.input.append(span)
        elif kind and _COLLECTIVE.search(kind):
            recording.collectives.setdefault(name, []).append(span)
        elif kind:
            recording.compute.append(span)


# -- where the time went


def union(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def without(spans: list[Span], others: list[Span]) -> list[Span]:
    """Return the parts of `spans` outside of `others`; each must be a result of union()."""
    left = []
    at = 0
    for begin, end in spans:
        while at < len(others) and others[at][1] <= begin:
            at += 1
        following = at
        while following < len(others) and others[following][0] < end:
            if begin < others[following][0]:
                left.append((begin, others[following][0]))
            begin = max(begin, others[following][1])
            following += 1
        if begin < end:
            left.append((begin, end))
    return left


def _seconds(spans: list[Span]) -> float:
    return sum(end - begin for begin, end in spans) / 1e9


def shares(recording: Recording) -> dict[str, float]:
    """The seconds of a task, each counted once: computing; else in a collective; else preparing input; else other."""
    window = [(recording.start, recording.stop)]

    def within(spans: Iterable[Span]) -> list[Span]:
        clipped = ((max(begin, recording.start), min(end, recording.stop)) for begin, end in spans)
        return union(span for span in clipped if span[0] < span[1])

    compute = within(recording.compute)
    reduced = within(span for spans in recording.collectives.values() for span in spans)
    collective = without(reduced, compute)
    busy = union([*compute, *reduced])
    prepared = without(within(recording.input), busy)
    other = without(window, union([*busy, *prepared]))
    return {
        "total": _seconds(window),
        "input": _seconds(prepared),
        "compute": _seconds(compute),
        "collective": _seconds(collective),
        "other": _seconds(other),
    }


def waits(recordings: dict[str, Recording]) -> dict[str, dict[str, float]]:
    """Seconds that each task was in a collective before the last task came to it: {task: {last: seconds}}."""
    found: dict[str, dict[str, float]] = {}
    for name in sorted({name for recording in recordings.values() for name in recording.collectives}):
        joined = {
            task: sorted(recording.collectives[name])
            for task, recording in recordings.items()
            if name in recording.collectives
        }
        if len(joined) < 2 or len({len(spans) for spans in joined.values()}) != 1:
            continue  # of a part of the tasks, or cut by the beginning or the end
        for spans in zip(*joined.values(), strict=True):
            last, (came, _) = max(zip(joined, spans, strict=True), key=lambda pair: pair[1][0])
            for task, (begin, end) in zip(joined, spans, strict=True):
                if task != last:
                    to = found.setdefault(task, {})
                    to[last] = to.get(last, 0.0) + max(0.0, min(came, end) - begin) / 1e9
    return found


def summarize(directory: Path) -> dict[str, object]:
    recordings: dict[str, Recording] = {}
    tasks: dict[str, dict[str, object]] = {}
    problems = []
    for facts in sorted(directory.glob("*.json")):
        file = facts.with_suffix(".xplane.pb")
        try:
            found = json.loads(facts.read_text())
            task, first, last = str(found["task"]), int(found["first"]), int(found["last"])
            if file.stat().st_size > _MOST_BYTES:
                raise ValueError(f"it is larger than {_MOST_BYTES >> 20} MiB; record fewer steps")
            recordings[task] = read(file.read_bytes())
        except (OSError, ValueError, KeyError, IndexError) as error:
            problems.append(f"{file}: {error}")
            continue
        tasks[task] = {"first": first, "last": last, **shares(recordings[task])}
    return {"tasks": tasks, "waits": waits(recordings), "problems": problems}


def main() -> None:
    json.dump(summarize(Path(sys.argv[1])), sys.stdout)


if __name__ == "__main__":
    main()
