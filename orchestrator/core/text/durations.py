"""Durations such as 1h30m: text to seconds and back (pure)."""

from __future__ import annotations

import itertools
import math
import re

MAX_DURATION_S = 366 * 86400.0
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_NUMBER = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)\Z", re.ASCII)
_PART = re.compile(r"(\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(ms|[dhms])", re.ASCII)
_HINT = "write 30, 1.5, 500ms, 30s, 5m or 1h30m"


def parse_duration(text: str) -> float:
    """Return the seconds in `30`, `1.5`, `500ms`, `30s`, `5m`, `1h30m` or `2d`. Raises ValueError."""
    body = text.strip().lower()
    if body.startswith("-"):
        raise ValueError(f'"{text}" is negative; {_HINT}')
    seconds = float(body) if _NUMBER.match(body) else _sum_of_parts(body)
    if seconds is None:
        raise ValueError(f'"{text}" is not a duration; {_HINT}')
    return check_duration(seconds)


def _sum_of_parts(body: str) -> float | None:
    """Return None unless the text consists of numbers with units, each unit once, the longest first."""
    parts = _PART.findall(body)
    if not parts or "".join(number + unit for number, unit in parts) != body:
        return None
    sizes = [_SECONDS[unit] for _, unit in parts]
    if any(size <= following for size, following in itertools.pairwise(sizes)):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def check_duration(seconds: float) -> float:
    """Return the seconds; ValueError unless they are 0 to MAX_DURATION_S."""
    if math.isnan(seconds) or seconds < 0:
        raise ValueError(f"{seconds:g} is not a length of time; {_HINT}")
    if seconds > MAX_DURATION_S:
        raise ValueError(f"{seconds:g} seconds is longer than a year; leave the limit out instead")
    return seconds


def format_duration(seconds: float) -> str:
    """Return `1h30m`, `10s`, `1.5s` or `500ms`, to the millisecond, for parse_duration."""
    left = round(seconds * 1000)
    if left < 1000:
        return f"{left}ms" if left else "0s"
    text = ""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000)):
        count, left = divmod(left, size)
        text += f"{count}{unit}" if count else ""
    return text + (f"{left / 1000:g}s" if left else "")
