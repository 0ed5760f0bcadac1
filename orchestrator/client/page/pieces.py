"""Documents that are too large to be in memory at once: objects and lists whose parts are made one after the other."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple


class Members(NamedTuple):
    """An object: names with values, each of which may be in pieces again. Can be read once."""

    pairs: Iterable[tuple[str, Any]]


class Items(NamedTuple):
    """A list of values. Can be read once."""

    values: Iterable[Any]


def whole(value: Any) -> Any:
    """Return the value with all its pieces in memory."""
    if isinstance(value, Members):
        return {name: whole(each) for name, each in value.pairs}
    return [whole(each) for each in value.values] if isinstance(value, Items) else value


def json_bytes(value: object) -> bytes:
    """Return the value as JSON. Only one piece is in memory at a time."""
    if isinstance(value, Members):
        return json_object((name, json_bytes(each)) for name, each in value.pairs)
    if isinstance(value, Items):
        return json_list(map(json_bytes, value.values))
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def json_object(fields: Iterable[tuple[str, bytes]]) -> bytes:
    """Return a JSON object of these names and values, which are JSON."""
    return b"{%b}" % b",".join(b"%b:%b" % (json_bytes(name), value) for name, value in fields)


def json_list(values: Iterable[bytes]) -> bytes:
    return b"[%b]" % b",".join(values)
