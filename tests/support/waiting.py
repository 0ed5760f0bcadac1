"""Waits for a condition, for as long as a very busy machine may need."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import psutil

# Only a test that hangs meets it.
PATIENCE_S = 60.0
_LOOK_S = 0.01

T = TypeVar("T")


def until(condition: Callable[[], T | None], timeout_s: float = PATIENCE_S) -> T:
    """The first true value of `condition`; AssertionError when there is none in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        # Asked first: the last look is one after the deadline, even if this process stood still until then.
        is_late = time.monotonic() >= deadline
        value = condition()
        if value:
            return value
        assert not is_late, f"still not so after {timeout_s:g} s"
        time.sleep(_LOOK_S)


def lives(pid: int) -> bool:
    """Whether the process is there and more than an exit status that waits to be read."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def until_gone(*pids: int) -> None:
    until(lambda: not any(map(lives, pids)))


def child_with(pid: int, mark: str) -> int | None:
    """Return the pid of a child whose command line contains `mark`."""
    try:
        children = psutil.Process(pid).children()
    except psutil.NoSuchProcess:
        return None
    for child in children:
        try:
            if any(mark in word for word in child.cmdline()):
                return int(child.pid)
        except psutil.Error:
            continue
    return None
