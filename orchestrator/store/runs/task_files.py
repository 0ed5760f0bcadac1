"""Files about one task in its run's directory: its uncaught exception, its stacks, the end of its log."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from orchestrator.core.diagnosis.symptoms import Uncaught
from orchestrator.core.state.result import TaskStack
from orchestrator.store.directory import Directory
from orchestrator.store.files import open_regular

# Read limits. A task can write a message or a stack of any length.
_MAX_EXCEPTION_BYTES = 4 << 20
_MAX_STACK_BYTES = 4 << 20
# Enough for an exception with its causes and a long gRPC status of a peer.
_LOG_TAIL_BYTES = 32 * 1024


def read_exception(run: Directory, path: Path) -> Uncaught | None:
    """Return the exception in a JSON file with the fields type, message, text, at. None if there is none."""
    try:
        with run.descend(path.parent) as directory:
            text = directory.read_bytes(path.name, _MAX_EXCEPTION_BYTES + 1)
    except OSError:
        return None
    if text is None or len(text) > _MAX_EXCEPTION_BYTES:
        return None
    try:
        # A Python message can contain lone surrogates, which a document cannot.
        document = json.loads(text, object_pairs_hook=_replace_surrogates)
        return Uncaught.model_validate(document)
    except (ValueError, RecursionError):
        return None


def write_traceback(uncaught: Uncaught, run: Directory, path: Path) -> bool:
    """Write the traceback as text. False if that fails, for example on a full disk."""
    try:
        with run.descend(path.parent) as directory:
            directory.write_atomically(path.name, uncaught.text.rstrip("\n") + "\n")
    except OSError:
        return False
    return True


def _replace_surrogates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    return {
        name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for name, value in pairs
    }


def append_stacks(stack: TaskStack, text: str, run: Directory, file: Path) -> TaskStack:
    """Append the text of a task's stacks to `file` and return the stack with its position in the file.

    Returns `stack` unchanged if its text is already in a file, is empty, or cannot be written.
    """
    if stack.file is not None or not text:
        return stack
    data = text.encode("utf-8", "replace")
    try:
        with run.make(file.parent.name) as directory:
            fd = directory.open_private(file.name, os.O_WRONLY | os.O_APPEND)
        with os.fdopen(fd, "ab") as stream:
            stream.write(time.strftime(f"\n%Y-%m-%d %H:%M:%S, by {stack.how}:\n").encode())
            offset = stream.tell()
            stream.write(data)
    except OSError:
        return stack
    return stack.model_copy(update={"file": str(file), "offset": offset, "length": len(data)})


def read_stacks(stack: TaskStack, file: Path) -> str | None:
    """Return the stacks of all threads from `file`, the task's own. None if nothing was written or it is gone."""
    if stack.file is None or stack.length <= 0 or stack.offset < 0:
        return None
    try:
        fd = open_regular(file)
    except OSError:
        return None
    try:
        data = os.pread(fd, min(stack.length, _MAX_STACK_BYTES), stack.offset)
    except (OSError, OverflowError):
        return None
    finally:
        os.close(fd)
    return data.decode("utf-8", "replace") or None


def read_log_tail(run: Directory, log: Path, since: int = 0) -> str:
    """Return the last 32 KiB of a log as text, but nothing before the offset `since`. Empty without a log.

    A log shorter than `since` was truncated by its task, and is read from its beginning. Invalid bytes are replaced.
    """
    try:
        with run.descend(log.parent) as directory:
            fd = directory.open_regular(log.name)
        with os.fdopen(fd, "rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(since if since <= size else 0, size - _LOG_TAIL_BYTES))
            return stream.read(_LOG_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""
