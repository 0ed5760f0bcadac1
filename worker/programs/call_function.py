"""Calls a function of the process that started the run, and gives its value or exception back to that process.

Each way is a file in memory without a name, whose descriptor the task has inherited (ORCH_DESCRIPTORS):

    call:    8 bytes: length of the header; the header (JSON); the pickled function, arguments and keywords
    return:  at ROOM * the task's number: 8 bytes: length of the rest; "v" and the pickled value; or "r", 8 bytes:
             length of the text of an exception; the text; the pickled exception, or nothing

Only `call` is unpickled, after a check that it is a sealed file in memory of this user: pickled data can run any code.
orchestrator/client/functions.py is the other end.
"""

from __future__ import annotations

import fcntl
import io
import json
import linecache
import mmap
import os
import pickle
import sys
import traceback
from collections.abc import Mapping
from typing import Any

_DESCRIPTORS = "ORCH_DESCRIPTORS"
_LENGTH_BYTES = 8
MOST_BYTES = 64 << 20
# Bytes for each task in the file of the values. Untouched pages take no memory.
ROOM = 2 * MOST_BYTES
# Bytes of the text of an exception with its traceback.
_MOST_TEXT = 1 << 20
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW


class ReturnRefused(Exception):
    """The value cannot be sent back; the text says why, and what to do."""


class Call:
    """The call as it was sent: `header`, and load() for the function with its arguments."""

    def __init__(self, descriptor: int) -> None:
        """Read the call from `descriptor`, which is closed."""
        with open(descriptor, "rb", buffering=0) as file:
            _require_sealed_memory(file.fileno())
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        start = _LENGTH_BYTES + int.from_bytes(self._bytes[:_LENGTH_BYTES], "little")
        self.header: Mapping[str, Any] = json.loads(self._bytes[_LENGTH_BYTES:start])
        self._start = start

    def load(self) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        with self._bytes, memoryview(self._bytes) as whole, whole[self._start :] as pickled:
            function, args, kwargs = pickle.loads(pickled)
        return function, args, kwargs


def _require_sealed_memory(descriptor: int) -> None:
    """Exit unless this is what the parent process made: a sealed file of this user, in memory, without a name."""
    found = os.fstat(descriptor)
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:  # a file on a disk
        seals = 0
    if seals & _SEALS != _SEALS or found.st_uid != os.geteuid():
        sys.exit(
            "orch: a function is accepted from the process that started this run only, and never from a file"
        )


class Return:
    """The room for one task's value. A process forked by the function leaves it alone."""

    def __init__(self, descriptor: int, number: int, function: str) -> None:
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor
        self._start = number * ROOM
        self._function = function
        self._owner = os.getpid()
        # An earlier attempt may have returned a value.
        self._write_length(0)

    def value(self, value: object) -> None:
        """Send the value. ReturnRefused if it is too large, or cannot be pickled."""
        try:
            self._write(b"v", _dumped(value))
        except _TooLarge:
            raise ReturnRefused(
                f"{self._function} returned more than {MOST_BYTES >> 20} MiB: write it to a file, such as in"
                " ORCH_CHECKPOINT_DIR, and return the path"
            ) from None
        except Exception as error:
            raise ReturnRefused(
                f"{self._function} returned a value of type {type(value).__name__}, which cannot be sent back"
                f" ({type(error).__name__}: {error}): return numbers, text, NumPy arrays, or containers of these"
            ) from error

    def raised(self, error: BaseException) -> None:
        """Send the exception, or its text alone if it cannot be pickled."""
        text = "".join(traceback.format_exception(error)).encode(errors="replace")[-_MOST_TEXT:]
        try:
            pickled = _dumped(error)
        except Exception:
            pickled = b""
        self._write(b"r", len(text).to_bytes(_LENGTH_BYTES, "little") + text + pickled)

    def _write(self, kind: bytes, content: bytes) -> None:
        if os.getpid() != self._owner:
            return
        rest = memoryview(kind + content)
        at = self._start + _LENGTH_BYTES
        while rest:
            written = os.pwrite(self._descriptor, rest, at)
            at, rest = at + written, rest[written:]
        self._write_length(at - self._start - _LENGTH_BYTES)

    def _write_length(self, length: int) -> None:
        os.pwrite(self._descriptor, length.to_bytes(_LENGTH_BYTES, "little"), self._start)


class _TooLarge(Exception):
    """The pickled data is larger than MOST_BYTES."""


class _Bounded(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > MOST_BYTES:
            raise _TooLarge
        return super().write(data)


def _dumped(value: object) -> bytes:
    import cloudpickle

    file = _Bounded()
    cloudpickle.Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def main() -> None:
    descriptors = json.loads(os.environ.pop(_DESCRIPTORS))
    call = Call(descriptors["call"])
    header = call.header
    sys.path[:] = header["path"]
    sys.argv[:] = header["argv"]
    for file, text in header["sources"].items():
        # Without a time, so that linecache keeps it. Tracebacks and AutoGraph read it.
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    answer = Return(descriptors["return"], header["tasks"].index(os.environ["ORCH_TASK"]), header["function"])
    try:
        function, args, kwargs = call.load()
        value = function(*args, **kwargs)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        _leave_out_own_frames(error)
        answer.raised(error)
        raise
    answer.value(value)


def _leave_out_own_frames(error: BaseException) -> None:
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    error.__traceback__ = frames


if __name__ == "__main__":
    main()
