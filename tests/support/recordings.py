"""Recordings of TensorFlow's profiler, made by hand: XSpace of tsl/profiler/protobuf/xplane.proto."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# (name of the event, begin in ms, end in ms) by the name of its line.
Lines = Mapping[str, Sequence[tuple[str, float, float]]]


def xspace(lines: Lines, start_ms: float, stop_ms: float, plane: str = "/host:CPU") -> bytes:
    """The bytes of a recording from `start_ms` to `stop_ms` since 1970. The events count from its start."""
    names = list(dict.fromkeys(name for events in lines.values() for name, _, _ in events))
    body = _field(2, plane.encode())
    for name, events in lines.items():
        line = _field(2, name.encode()) + integer(3, 0)
        for event, begin, end in events:
            parts = (names.index(event) + 1, int(begin * 1e9), int((end - begin) * 1e9))
            line += _field(4, b"".join(integer(number, part) for number, part in enumerate(parts, start=1)))
        body += _field(3, line)
    body += b"".join(_named(4, number, name) for number, name in enumerate(names, start=1))
    facts = _field(2, b"Task Environment")
    for number, (name, at) in enumerate(
        (("profile_start_time", start_ms), ("profile_stop_time", stop_ms)), start=1
    ):
        facts += _named(5, number, name) + _field(6, integer(1, number) + integer(3, int(at * 1e6)))
    return _field(1, body) + _field(1, facts)


def _named(field: int, number: int, name: str) -> bytes:
    return _field(field, integer(1, number) + _field(2, integer(1, number) + _field(2, name.encode())))


def _field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def integer(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])
