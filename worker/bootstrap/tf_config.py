"""Keeps TF_CONFIG as orch has set it, whatever the script does to it, and says once where the script tried.

A script's own cluster names ports that orch does not hold, and every task would take the same place in it. Child
processes inherit the kept value.
"""

from __future__ import annotations

import os
import sys

from .messages import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_NAME = "TF_CONFIG"
_KEY = _NAME.encode()
# Modules between the script and the functions below.
_BETWEEN = ("os", "collections.abc", "_collections_abc", "contextlib", "unittest.mock")


def keep() -> None:
    """Protect the value in os.environ, os.environb and the C library's environment. Without a value it does nothing.

    The methods of the mappings' class are replaced. Only these two objects belong to it.
    """
    value = os.environb.get(_KEY)
    if value is None:
        return
    report = _Report()
    mapping: Any = type(os.environ)
    set_item, delete_item = mapping.__setitem__, mapping.__delitem__

    def __setitem__(self: Any, key: Any, value_given: Any) -> None:
        if not _is_kept(key):
            set_item(self, key, value_given)
        elif self.encodevalue(value_given) != value:
            report("sets")

    def __delitem__(self: Any, key: Any) -> None:
        if _is_kept(key):
            report("removes")
        else:
            delete_item(self, key)

    def popitem(self: Any) -> tuple[Any, Any]:
        key = next((key for key in self if not _is_kept(key)), None)
        if key is None:
            raise KeyError("popitem(): only TF_CONFIG is left")
        return key, self.pop(key)

    def clear(self: Any) -> None:
        for key in self:
            del self[key]

    for method in (__setitem__, __delitem__, popitem, clear):
        setattr(mapping, method.__name__, method)
    os.putenv = _unless_kept(os.putenv, "sets", report)
    os.unsetenv = _unless_kept(os.unsetenv, "removes", report)


def _is_kept(key: object) -> bool:
    return key in (_NAME, _KEY)


def _unless_kept(change: Callable[..., None], verb: str, report: _Report) -> Callable[..., None]:
    def changed(name: Any, *value: Any) -> None:
        if os.fsencode(name) == _KEY:
            report(verb)
        else:
            change(name, *value)

    changed.__name__ = changed.__qualname__ = change.__name__
    changed.__doc__ = change.__doc__
    return changed


class _Report:
    """Logs the first attempt of this process, with the script's file and line."""

    def __init__(self) -> None:
        self._is_done = False

    def __call__(self, verb: str) -> None:
        if not self._is_done:
            self._is_done = True
            log(
                f"{_place()} {verb} TF_CONFIG; the task keeps the one that orch made for it"
                " (--script-tf-config to use the script's)"
            )


def _place() -> str:
    """`train.py line 12`: the innermost line outside of this module and of the standard library's mappings."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in (__name__, *_BETWEEN):
        frame = frame.f_back
    file = frame.f_code.co_filename
    try:
        file = file.removeprefix(f"{os.getcwd()}/")  # noqa: PTH109 (pathlib takes longer than the whole bootstrap)
    except OSError:
        pass  # the directory was removed
    return f"{file} line {frame.f_lineno}"
