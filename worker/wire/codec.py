"""Frozen dataclasses as JSON lines, and back. Each line is checked against the annotations of its class.

    {"type": "Started", "task": "worker:0", "pid": 4711, ...}

Fields can be int, float, str, bool, bytes (base64), a Literal, a tuple, a Mapping with str keys, another
dataclass, each of them or None, and object for any JSON value. Annotated[..., Within(1, 65535)] narrows a number, and
any object with such a check() a value. Fields that the class does not have are ignored, so that a newer sender is
understood; those with a default may be missing. A number is finite and has 64 bits at most.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import math
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

Reader = Callable[[Any], Any]
_LARGEST = 2**63 - 1
# Longest quote of a value in an error, characters.
_LONGEST_QUOTE = 100


class BadMessage(ValueError):
    """A line that is not a message, or a value that its annotation forbids. The text says where and what."""


@dataclasses.dataclass(frozen=True)
class Within:
    """The least and the largest number of a field."""

    least: float
    most: float

    def check(self, value: Any) -> None:
        if not self.least <= value <= self.most:
            raise BadMessage(f"{_quoted(value)} is not between {self.least:g} and {self.most:g}")


def encode(message: object) -> bytes:
    """Return the line of a message, with its newline."""
    fields = {"type": type(message).__name__, **vars(message)}
    return json.dumps(fields, default=_plain, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _plain(value: object) -> object:
    """Convert a value that json cannot write."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return dict(value)
    return vars(value)


def decoder(*kinds: type) -> Callable[[bytes], Any]:
    """Return a function that reads the line of a message of one of these classes, and raises BadMessage."""
    by_name = {kind.__name__: kind for kind in kinds}
    readers: dict[str, Reader] = {}

    def decode(line: bytes) -> Any:
        fields = read_json(line)
        name = fields.get("type") if isinstance(fields, dict) else None
        if not isinstance(name, str) or name not in by_name:
            raise BadMessage(f"not a message that is known here: {_quoted(line)}")
        if name not in readers:
            readers[name] = reader(by_name[name])
        try:
            return readers[name](fields)
        except BadMessage as error:
            raise BadMessage(f"{name}: {error}") from None

    return decode


def read_json(line: bytes) -> Any:
    """Return the value of a line. BadMessage if it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"not JSON ({error}): {_quoted(line)}") from None


def reader(kind: Any) -> Reader:
    """Return a function that checks a value that json has read, and converts it for a field with this annotation.

    The function raises BadMessage. TypeError for an unknown annotation.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _checked(reader(arguments[0]), arguments[1:])
    if origin in (Union, types.UnionType):
        return _optional(arguments)
    if origin is Literal:
        return _one_of({value: value for value in arguments})
    if origin is tuple:
        return _tuple(arguments)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(reader(arguments[0]), reader(arguments[1]))
    if dataclasses.is_dataclass(kind):
        return _record(kind)
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    raise TypeError(f"a field of a message cannot be {kind}")


def _integer(value: Any) -> int:
    if type(value) is not int or not -_LARGEST <= value <= _LARGEST:
        raise BadMessage(f"{_quoted(value)} is not an integer of 64 bits")
    return value


def _number(value: Any) -> float:
    if type(value) is int:
        value = float(_integer(value))
    if type(value) is not float or not math.isfinite(value):
        raise BadMessage(f"{_quoted(value)} is not a finite number")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise BadMessage(f"{_quoted(value)} is not a text")
    return value


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise BadMessage(f"{_quoted(value)} is neither true nor false")
    return value


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(_text(value), validate=True)
    except binascii.Error as error:
        raise BadMessage(f"not base64: {error}") from None


def _any(value: Any) -> Any:
    return value


_SIMPLE: dict[Any, Reader] = {
    int: _integer,
    float: _number,
    str: _text,
    bool: _truth,
    bytes: _bytes,
    object: _any,
}


def _checked(read: Reader, checks: tuple[Any, ...]) -> Reader:
    def read_checked(value: Any) -> Any:
        value = read(value)
        for each in checks:
            each.check(value)
        return value

    return read_checked


def _optional(arguments: tuple[Any, ...]) -> Reader:
    (kind,) = (each for each in arguments if each is not type(None))
    read = reader(kind)
    return lambda value: None if value is None else read(value)


def _one_of(values: Mapping[Any, Any]) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not str or value not in values:
            raise BadMessage(f"{_quoted(value)} is not one of {', '.join(map(str, values))}")
        return values[value]

    return read


def _tuple(arguments: tuple[Any, ...]) -> Reader:
    if arguments[-1] is not Ellipsis:
        readers = [reader(each) for each in arguments]

        def read_fixed(value: Any) -> tuple[Any, ...]:
            if type(value) is not list or len(value) != len(readers):
                raise BadMessage(f"{_quoted(value)} is not a list of {len(readers)}")
            return tuple(read(each) for read, each in zip(readers, value, strict=True))

        return read_fixed
    read = reader(arguments[0])

    def read_all(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise BadMessage(f"{_quoted(value)} is not a list")
        return tuple(map(read, value))

    return read_all


def _mapping(read_key: Reader, read: Reader) -> Reader:
    def read_mapping(value: Any) -> dict[Any, Any]:
        if type(value) is not dict:
            raise BadMessage(f"{_quoted(value)} is not an object")
        return {read_key(key): read(each) for key, each in value.items()}

    return read_mapping


def _record(kind: Any) -> Reader:
    hints = get_type_hints(kind, include_extras=True)
    fields = [
        (field.name, reader(hints[field.name]), _is_required(field)) for field in dataclasses.fields(kind)
    ]

    def read_record(value: Any) -> Any:
        if type(value) is not dict:
            raise BadMessage(f"{_quoted(value)} is not an object")
        found = {}
        for name, read, is_required in fields:
            if name in value:
                try:
                    found[name] = read(value[name])
                except BadMessage as error:
                    raise BadMessage(f"{name}: {error}") from None
            elif is_required:
                raise BadMessage(f"{name} is missing")
        return kind(**found)

    return read_record


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}..."
