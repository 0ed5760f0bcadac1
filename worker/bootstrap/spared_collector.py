"""Keeps what an import has made from the garbage collector, and nothing that the script has made before.

What TensorFlow's import makes, some 260,000 objects, stays till the process's end; the last collection would take
a second to look at it. gc.freeze() spares that, but freezes the script's own variables too: those that are part of a
cycle, as all are that a function of the script's can see, would then never be freed. `__del__` would not be
called, and what a file still open has in its buffer would not be written.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from types import ModuleType

from .after_import import after_import, before_import

# Python 3.12 freezes 375 objects at its own start; the preloader has frozen thousands.
_MOST_OF_PYTHONS_OWN = 1000


def spare(name: str) -> None:
    """Freeze what the import of `name` makes: the one under way, or else the next."""
    # A preloaded one has been frozen by the preloader, with nothing of the script's.
    # From 3.13 on, what a script leaves in a cycle would not be freed at its end.
    if gc.get_freeze_count() > _MOST_OF_PYTHONS_OWN or sys.version_info >= (3, 13):
        return
    found: set[int] = set()
    before_import(name, lambda: found.update(_tracked()))

    def freeze(_: ModuleType) -> None:
        if found:
            _freeze_all_but(found)

    after_import(name, freeze)


def _tracked() -> set[int]:
    """Addresses only: none of them is to live any longer for this."""
    return {id(each) for each in gc.get_objects()}


def _freeze_all_but(addresses: set[int]) -> None:
    """An address may have been given to another object since, which then is not frozen either."""
    untrack, track = ctypes.pythonapi.PyObject_GC_UnTrack, ctypes.pythonapi.PyObject_GC_Track
    for function in (untrack, track):
        function.argtypes, function.restype = (ctypes.py_object,), None
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        kept = [each for each in gc.get_objects() if id(each) in addresses]
        gc.freeze()
        # Tracked anew, an object belongs to the youngest generation.
        for each in kept:
            untrack(each)
            track(each)
    finally:
        if was_enabled:
            gc.enable()
