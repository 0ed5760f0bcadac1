"""How much is tried, and what: bytes, texts and documents of any shape, and good ones with damage done to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import hypothesis
from hypothesis import HealthCheck
from hypothesis import strategies as st

# Set by conftest.py before any test is read.
is_thorough = False
_TIMES = 30
_FEWEST = 10
T = TypeVar("T", bound=Callable[..., Any])


def effort(examples: int, **others: Any) -> hypothesis.settings:
    """Return settings: in the gate half of `examples`, the same each time; otherwise many more and new ones."""
    return hypothesis.settings(
        max_examples=examples * _TIMES if is_thorough else max(_FEWEST, examples // 2),
        derandomize=not is_thorough,
        deadline=None,
        suppress_health_check=tuple(HealthCheck),
        **others,
    )


def fuzzed(examples: int) -> Callable[[T], T]:
    """`effort`, as a decorator."""
    return effort(examples)


# Halves of characters, and what some parser could take for more than a character.
any_text = st.text(st.characters(codec=None), max_size=20) | st.sampled_from(
    ["", "\x00", "\x1b[2J", "\ud800", "\u2028", "\r\n", "../..", "worker:0", "nan", "-1", "1e999", "x" * 5000]
)
_HUGE = [0, -1, 2**31, 2**63, -(2**63), 2**64, 10**30, 10**400]
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(_HUGE)
    | st.floats()
    | st.sampled_from([1e308, -1e308, 1e18])
    | any_text
)
# Any JSON value.
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=8,
)
DEEP = b"[" * 100_000


def as_json(document: object) -> bytes:
    """As Python writes it, NaN and halves of characters included."""
    return json.dumps(document).encode()


json_bytes = documents.map(as_json)
any_bytes = st.binary(max_size=80) | json_bytes | st.just(DEEP) | st.just(b"\xff\xfe{}")


@st.composite
def damaged(draw: st.DrawFn, document: dict[str, Any]) -> Any:
    """`document` with some of its values replaced, some keys gone or new, at any depth."""
    return _damage(draw, document)


def _damage(draw: st.DrawFn, value: Any) -> Any:
    if not isinstance(value, dict | list) or not value:
        return draw(documents)
    if isinstance(value, list):
        place = draw(st.integers(0, len(value) - 1))
        return [_damage(draw, item) if n == place else item for n, item in enumerate(value)]
    changed = dict(value)
    for key in draw(st.lists(st.sampled_from(sorted(value)), min_size=1, max_size=2, unique=True)):
        what = draw(st.sampled_from(["deeper", "deeper", "other", "gone"]))
        if what == "gone":
            del changed[key]
        else:
            changed[key] = draw(documents) if what == "other" else _damage(draw, value[key])
    return changed | draw(st.dictionaries(any_text, documents, max_size=1))


@st.composite
def torn(draw: st.DrawFn, data: bytes) -> bytes:
    """`data` cut, with bytes changed, or with some put in."""
    at = draw(st.integers(0, len(data)))
    end = draw(st.integers(at, min(len(data), at + 8)))
    return data[:at] + draw(st.binary(max_size=8)) + data[end:] if draw(st.booleans()) else data[:at]
