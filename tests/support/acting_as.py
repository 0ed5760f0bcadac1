"""Run a function in a child process, also as another user of this machine, which needs root."""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
_PR_SET_DUMPABLE = 4

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")


def become(uid: int) -> None:
    """Give up root in this process for ever. Its own files in /proc stay readable, as after a login."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def in_child(function: Callable[[], T]) -> T:
    """Like as_user(), as this user: for changes of the process that cannot be undone."""
    return as_user(os.geteuid(), function)


def as_user(uid: int, function: Callable[[], T]) -> T:
    """Return what `function` returns in a child process of the user `uid`; raise what it raises."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        _answer(uid, function, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        data = answer.read()
    os.waitpid(pid, 0)
    error, value = pickle.loads(data)
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


def _answer(uid: int, function: Callable[[], Any], writer: int) -> None:
    """Run the function and exit without the clean-up of the test process."""
    try:
        if uid != os.geteuid():
            become(uid)
        answer = (None, function())
    except BaseException as error:
        answer = (error, None)
    try:
        with os.fdopen(writer, "wb") as out:
            out.write(pickle.dumps(answer))
        sys.stdout.flush()
    finally:
        os._exit(0)
