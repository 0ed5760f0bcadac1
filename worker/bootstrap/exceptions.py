"""Writes the exception that ends this process to a file, so that orch can show it with the exit code."""

from __future__ import annotations

import atexit
import os
import sys
import time

# Not the json module: it imports re, and the script may shadow it.
from _json import encode_basestring_ascii as _json_string

from . import stopping
from .after_import import after_import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType, TracebackType

# Characters. A longer text loses its middle, because both ends of a traceback matter.
LONGEST_TEXT = 64 * 1024
LONGEST_MESSAGE = 8 * 1024
THREADS_SUFFIX = ".threads"
_PRIVATE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_OWN_FILES = os.path.dirname(__file__) + "/"  # noqa: PTH120


def install(path: str, run_directory: list[int] | None = None) -> None:
    """Write an uncaught exception to `path`, which is in a directory of the run, before Python prints it.

    The file is one JSON document: `type` as Python prints it, `message`, `text` (the whole traceback with chained
    exceptions), `at` (`FILE:LINE`, where it was raised, or null) and `mono` (when it was written, in monotonic seconds:
    the exit may follow much later). Python then prints it without the frames of this package; the file has them.
    Uncaught exceptions of other threads do not end the process. They are appended to `path` + ".threads", one document
    a line.
    """
    owner = os.getpid()
    previous = sys.excepthook
    has_written_last = False

    def write(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        # A forked child inherits the hook, but its exceptions are not the task's. After a KeyboardInterrupt Python
        # exits by SIGINT, which says as much.
        if os.getpid() == owner and not issubclass(kind, KeyboardInterrupt):
            nonlocal has_written_last
            has_written_last = value is exception_of_process()
            _ignore_errors(lambda: _replace(path, run_directory, describe(kind, value, trace)))

    def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() == owner and stopping.is_deferred():
            # An operation failed because of the stop, which could not be raised inside it.
            stopping.raise_stop()
        write(kind, value, trace)
        _ignore_errors(lambda: _hide_own_frames(value))
        previous(kind, value, _without_own_frames(trace))

    def at_exit() -> None:
        # If the script has replaced our hook, Python has stored the exception that it called that hook for.
        value = exception_of_process()
        if value is not None and not has_written_last:
            write(type(value), value, value.__traceback__)

    sys.excepthook = excepthook
    atexit.register(at_exit)
    after_import("threading", lambda threading: _watch_threads(threading, path, run_directory, owner))


def exception_of_process() -> BaseException | None:
    """The exception that left the outermost frame, and not only the frames of a callback from C."""
    value = getattr(sys, "last_value", None)
    if not isinstance(value, BaseException) or isinstance(value, SystemExit):
        return None
    trace = value.__traceback__
    return value if trace is None or trace.tb_frame.f_back is None else None


def _watch_threads(threading: ModuleType, path: str, run_directory: list[int] | None, owner: int) -> None:
    previous = threading.excepthook

    def excepthook(args: threading.ExceptHookArgs) -> None:  # type: ignore[name-defined]
        if os.getpid() == owner and args.exc_type is not SystemExit and args.exc_value is not None:
            value = args.exc_value
            text = describe(args.exc_type, value, args.exc_traceback)
            _ignore_errors(lambda: _write(open_to_append(path + THREADS_SUFFIX, run_directory), text))
            _ignore_errors(lambda: _hide_own_frames(value))
        previous(args)

    threading.excepthook = excepthook  # type: ignore[attr-defined]


def _ignore_errors(write: Callable[[], None]) -> None:
    """Call `write()`. An error in it must not hide the exception itself."""
    try:
        write()
    except Exception:
        return


def _hide_own_frames(value: BaseException) -> None:
    """Remove this package's frames from the tracebacks of an exception, its causes and its members.

    They are in the file, but Python does not print them: they are not part of the user's program."""
    waiting: list[BaseException | None] = [value]
    seen: list[BaseException] = []
    while waiting:
        error = waiting.pop()
        if error is None or any(error is other for other in seen):
            continue
        seen.append(error)
        error.__traceback__ = _without_own_frames(error.__traceback__)
        waiting += [error.__cause__, error.__context__, *getattr(error, "exceptions", ())]


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    kept = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
            kept.append(trace)
        trace = trace.tb_next
    following = None
    for frame in reversed(kept):
        frame.tb_next = following
        following = frame
    return following


def describe(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> str:
    """Return the exception as a line of JSON, in ASCII."""
    places = _places(trace)
    fields = {
        "type": _json_string(_name(kind)),
        "message": _json_string(_shortened(_message(value), LONGEST_MESSAGE)),
        "text": _json_string(_shortened(_text(kind, value, trace), LONGEST_TEXT)),
        "at": _json_string(places[-1][0]) if places else "null",
        "mono": repr(time.monotonic()),
    }
    return "{" + ",".join(f'"{key}":{item}' for key, item in fields.items()) + "}\n"


def _places(trace: TracebackType | None) -> list[tuple[str, str]]:
    """(FILE:LINE, function) of each frame, the innermost last."""
    places = []
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append((f"{code.co_filename}:{trace.tb_lineno}", code.co_name))
        trace = trace.tb_next
    return places


def _text(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> str:
    try:
        return "".join(library_module("traceback").format_exception(kind, value, trace))
    except Exception:
        # The script has a module with the name of one that traceback needs. Omit source lines and causes.
        lines = [f"  {place}, in {function}\n" for place, function in _places(trace)]
        return "".join([*lines, f"{_name(kind)}: {_message(value)}\n"])


def library_module(name: str) -> ModuleType:
    """The module of Python's library, even if a file of that name lies beside the script."""
    if name not in sys.modules:
        library = os.path.dirname(os.__file__)  # noqa: PTH120
        entries = sys.path[:]
        sys.path[:] = [entry for entry in entries if entry.startswith(library)]
        try:
            __import__(name)
        finally:
            sys.path[:] = entries
    return sys.modules[name]


def _name(kind: type[BaseException]) -> str:
    module = kind.__module__
    return kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"


def _message(value: BaseException) -> str:
    try:
        return str(value)
    except Exception:
        return "<exception str() failed>"  # as Python prints it


def _shortened(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n... {len(text) - 2 * half:,} characters left out ...\n{text[-half:]}"


def _replace(path: str, run_directory: list[int] | None, text: str) -> None:
    """Write beside `path` and rename, so that the file is always complete."""
    name = os.path.basename(path)  # noqa: PTH119
    beside = f"{name}.{os.getpid()}"
    directory = _open_directory(path, run_directory)
    try:
        _write(os.open(beside, _PRIVATE | os.O_TRUNC, 0o600, dir_fd=directory), text)
        os.replace(beside, name, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        os.close(directory)


def open_to_append(path: str, run_directory: list[int] | None) -> int:
    """Open a file in a directory of the run, created with mode 0600 if it is missing, and return its descriptor."""
    directory = _open_directory(path, run_directory)
    try:
        return os.open(os.path.basename(path), _PRIVATE | os.O_APPEND, 0o600, dir_fd=directory)  # noqa: PTH119
    finally:
        os.close(directory)


def _open_directory(path: str, run_directory: list[int] | None) -> int:
    """Open the directory of `path`, created with mode 0700 if it is missing.

    OSError if its parent is not the run's directory (device and inode), which other users may be able to exchange.
    """
    place, name = os.path.split(os.path.dirname(path))  # noqa: PTH120
    run = os.open(place, _DIRECTORY)
    try:
        status = os.fstat(run)
        if run_directory is not None and run_directory != [status.st_dev, status.st_ino]:
            raise OSError(f"{place}: another directory was put in the place of the run's")
        try:
            os.mkdir(name, 0o700, dir_fd=run)
        except FileExistsError:
            pass
        return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=run)
    finally:
        os.close(run)


def _write(fd: int, text: str) -> None:
    """Write in one piece, if the system allows, and close the file."""
    try:
        left = text.encode("ascii")
        while left:
            left = left[os.write(fd, left) :]
    finally:
        os.close(fd)
