"""Writes down the exception that ends this process, for orch to show beside the exit code."""

from __future__ import annotations

import atexit
import os
import sys

from . import stopping
from .after_import import after_import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType, TracebackType

# More is cut out of the middle: both ends of a traceback matter.
LONGEST_TEXT = 64 * 1024
LONGEST_MESSAGE = 8 * 1024
THREADS_SUFFIX = ".threads"


def install(path: str) -> None:
    """From now on an uncaught exception is written to `path` before Python prints it.

    The file is one JSON document: `type` as Python prints it, `message`, `text` (the whole traceback with chained
    exceptions) and `at` (`FILE:LINE`, where it was raised, or null). Uncaught exceptions of other threads do
    not end the process: they are appended to `path` + ".threads", one document a line.
    """
    owner = os.getpid()
    previous = sys.excepthook
    has_written_the_last = False

    def write(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        # A forked child inherits the hook, but its exceptions are not the task's.
        # KeyboardInterrupt says no more than the exit by SIGINT that Python makes of it.
        if os.getpid() == owner and not issubclass(kind, KeyboardInterrupt):
            nonlocal has_written_the_last
            has_written_the_last = value is _last_of_all()
            _keep(lambda: write_private(path, describe(kind, value, trace)))

    def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() == owner and stopping.is_put_off():
            # An operation that failed because of the stop, which could not be raised inside it.
            stopping.raise_stop()
        write(kind, value, trace)
        previous(kind, value, trace)

    def at_exit() -> None:
        # The script has set a hook in our hook's place: Python has noted for which exception it called that one.
        value = _last_of_all()
        if value is not None and not has_written_the_last:
            write(type(value), value, value.__traceback__)

    sys.excepthook = excepthook
    atexit.register(at_exit)
    after_import("threading", lambda threading: _watch_threads(threading, path, owner))


def _last_of_all() -> BaseException | None:
    """The exception that has gone through all frames, not only those of a callback from C."""
    value = getattr(sys, "last_value", None)
    if not isinstance(value, BaseException) or isinstance(value, SystemExit):
        return None
    trace = value.__traceback__
    return value if trace is None or trace.tb_frame.f_back is None else None


def _watch_threads(threading: ModuleType, path: str, owner: int) -> None:
    previous = threading.excepthook

    def excepthook(args: threading.ExceptHookArgs) -> None:  # type: ignore[name-defined]
        if os.getpid() == owner and args.exc_type is not SystemExit and args.exc_value is not None:
            text = describe(args.exc_type, args.exc_value, args.exc_traceback)
            _keep(lambda: append_private(path + THREADS_SUFFIX, text))
        previous(args)

    threading.excepthook = excepthook  # type: ignore[attr-defined]


def _keep(write: Callable[[], None]) -> None:
    """Whatever goes wrong here must not hide the exception itself."""
    try:
        write()
    except Exception:
        return


def describe(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> str:
    """The exception as a line of JSON, in ASCII."""
    places = _places(trace)
    fields = {
        "type": _name(kind),
        "message": _shortened(_message(value), LONGEST_MESSAGE),
        "text": _shortened(_text(kind, value, trace, places), LONGEST_TEXT),
        "at": places[-1][0] if places else None,
    }
    return "{" + ",".join(f'"{key}":{_json(item)}' for key, item in fields.items()) + "}\n"


def _places(trace: TracebackType | None) -> list[tuple[str, str]]:
    """(FILE:LINE, function) of each frame, the innermost last."""
    places = []
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append((f"{code.co_filename}:{trace.tb_lineno}", code.co_name))
        trace = trace.tb_next
    return places


def _text(
    kind: type[BaseException],
    value: BaseException,
    trace: TracebackType | None,
    places: list[tuple[str, str]],
) -> str:
    try:
        return "".join(_traceback_module().format_exception(kind, value, trace))
    except Exception:
        # A module of the script's stands in for one that traceback needs: then without source and causes.
        lines = [f"  {place}, in {function}\n" for place, function in places]
        return "".join([*lines, f"{_name(kind)}: {_message(value)}\n"])


def _traceback_module() -> ModuleType:
    """Python's own, also when a file of that name lies beside the script."""
    if "traceback" not in sys.modules:
        library = os.path.dirname(os.__file__)  # noqa: PTH120
        entries = sys.path[:]
        sys.path[:] = [entry for entry in entries if entry.startswith(library)]
        try:
            __import__("traceback")
        finally:
            sys.path[:] = entries
    return sys.modules["traceback"]


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


def _json(text: str | None) -> str:
    """A JSON string. The script may have shadowed the json module, and half the reason to be here is failed imports."""
    if text is None:
        return "null"
    escaped = []
    for character in text:
        code = ord(character)
        if character in '"\\':
            escaped.append("\\" + character)
        elif 0x20 <= code < 0x7F:
            escaped.append(character)
        elif code < 0x10000:
            escaped.append(f"\\u{code:04x}")
        else:
            code -= 0x10000
            escaped.append(f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}")
    return '"' + "".join(escaped) + '"'


def write_private(path: str, text: str) -> None:
    """Write beside and rename: whoever finds the file finds it whole. Mode 0600, its directory 0700."""
    make_private_directory(path)
    beside = f"{path}.{os.getpid()}"
    _write(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, text)
    os.replace(beside, path)  # noqa: PTH105


def append_private(path: str, text: str) -> None:
    """Append in one write; mode 0600, its directory 0700."""
    make_private_directory(path)
    _write(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, text)


def make_private_directory(path: str) -> None:
    """The directory that `path` is to lie in, mode 0700 if it has to be made."""
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)  # noqa: PTH103, PTH120


def _write(path: str, flags: int, text: str) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        left = text.encode("ascii")
        while left:
            left = left[os.write(fd, left) :]
    finally:
        os.close(fd)
