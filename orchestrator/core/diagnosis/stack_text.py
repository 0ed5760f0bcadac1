"""Parses the text of a task's stacks: dumps of Python's faulthandler and of `py-spy dump`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.core.state.result import TaskStack
from orchestrator.core.text.counted import counted

MOST_FRAMES = 12
# Outermost frames that are kept of a deeper stack: they are the user's.
_OUTERMOST = 3
# Native frames that are kept inside the innermost Python frame.
_NATIVE = 4
# Separates the frames of a script's function, which TensorFlow runs in another thread, from those of the main thread,
# which waits for it.
CALLED_BY = "(called by TensorFlow in a thread of its own; the main thread:)"
_CALLBACK = "tensorflow/python/ops/script_ops.py:"
_MAIN = "MainThread"

_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+\b.*\(most recent call first\):\s*")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?)(?: in (.*))?')
_SPY_THREAD = re.compile(r'Thread (?:0x[0-9A-Fa-f]+|\d+) \([^)]*\)(?:: "(.*)")?\s*')
_SPY_FRAME = re.compile(r" {4}(\S.*) \(([^()]*)\)\s*")
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/")
_LIBRARY = re.compile(r".*/lib(?:32|64)?/python3\.\d+t?/(?:lib-dynload/)?")
# A file that autograph generates for a function of the user.
_GENERATED = re.compile(r"(?:.*/)?__autograph_generated_file[^/]*\.py")
_BOOTSTRAP = "worker/bootstrap/"
_ORCHS = re.compile(r"(?:.*/)?(worker/(?:bootstrap|training)/.*)")
# A frame as text: `train.py:12 main`, `libc.so.6 sleep`.
_FRAME_TEXT = re.compile(r"(?P<file>.+?):(?:\d+|\?\?\?) (?P<function>.*)")
# py-spy names the source of native code that was built with debug information.
_C_SOURCE = re.compile(r"\.(?:[chS]|cc|cpp|cxx|hh|hpp)\Z")
_CUT = re.compile(r"\.\.\.(?: [\d,]+ more frames? \.\.\.)?")


class Answer(Protocol):
    """The agent's answer about one task (links.agent_link.Stacked)."""

    @property
    def how(self) -> str: ...
    @property
    def state(self) -> str | None: ...
    @property
    def text(self) -> str: ...
    @property
    def note(self) -> str | None: ...
    @property
    def file(self) -> str | None: ...
    @property
    def offset(self) -> int: ...
    @property
    def length(self) -> int: ...


@dataclass(frozen=True)
class Thread:
    """The frames of a thread, the innermost first: `file.py:12 function`, or `libc.so.6 sleep` if native."""

    name: str | None
    frames: tuple[str, ...]


def to_task_stack(message: Answer) -> TaskStack:
    """Convert an agent's answer. Never raises, whatever its text is."""
    frames = _without_bootstrap(main_frames(parse_threads(message.text)))
    note = message.note
    if message.how != "none" and not frames:
        note = "; ".join(part for part in (note, "its text holds no stack of a main thread") if part)
    return TaskStack(
        how="signal" if message.how == "signal" else "py-spy" if message.how == "py-spy" else "none",
        state=message.state,
        frames=shortened(frames),
        note=note,
        file=message.file,
        offset=message.offset,
        length=message.length,
    )


def _without_bootstrap(frames: tuple[str, ...]) -> tuple[str, ...]:
    """Return the frames of the user's program and its libraries, or all if there are only others."""
    return tuple(frame for frame in frames if not frame.startswith(_BOOTSTRAP)) or frames


def parse_threads(text: str) -> list[Thread]:
    """Return the threads in a dump, the main one first; empty if it is not a dump, or lacks the main thread."""
    found: list[Thread] = []
    frames: list[str] = []
    is_py_spys = False
    for line in text.splitlines():
        spied = _SPY_THREAD.fullmatch(line)
        if spied or _THREAD.fullmatch(line):
            is_py_spys = is_py_spys or spied is not None
            frames = []
            found.append(Thread(spied[1] if spied else None, ()))
        elif found and (frame := _frame(line)) is not None:
            frames.append(frame)
            found[-1] = Thread(found[-1].name, tuple(frames))
        elif line == "..." and not is_py_spys:
            return []  # faulthandler stops after a hundred threads; the main thread would be the last one
    if not found:
        return []
    # faulthandler prints the oldest thread last; py-spy prints it first if it knows no names.
    otherwise = found[0] if is_py_spys else found[-1]
    main = next((thread for thread in found if thread.name == _MAIN), otherwise)
    return [main, *(thread for thread in found if thread is not main)]


def _frame(line: str) -> str | None:
    if match := _FRAME.fullmatch(line):
        return f"{short_file(match[1])}:{match[2]} {match[3] or '?'}"
    if match := _SPY_FRAME.fullmatch(line):
        file, colon, number = match[2].rpartition(":")
        if colon and number.isdecimal():
            return f"{short_file(file)}:{number} {match[1]}"
        return f"{short_file(match[2])} {match[1]}"
    return "..." if line == "  ..." else None  # faulthandler's, after a hundred frames


def short_file(path: str) -> str:
    """Return the short form of a path: `train.py`, `threading.py`, `tensorflow/python/eager/context.py`."""
    if match := _INSTALLED.match(path) or _LIBRARY.match(path):
        return path[match.end() :] or path
    if match := _ORCHS.fullmatch(path):
        return match[1]
    return (path.rpartition("/")[2] or path) if path.startswith("/") else path


def is_user_file(path: str) -> bool:
    """Whether a full path belongs neither to Python's library, nor to an installed package, nor to orch, and TensorFlow
    did not generate it."""
    others = (
        _INSTALLED.match(path),
        _LIBRARY.match(path),
        _ORCHS.fullmatch(path),
        _GENERATED.fullmatch(path),
    )
    return not (path.startswith("<") or any(others))


def main_frames(threads: Sequence[Thread]) -> tuple[str, ...]:
    """Return the frames of the main thread.

    If it waits in TensorFlow for a function of the script (a data generator) in another thread, the frames of that
    function come first."""
    if not threads:
        return ()
    main, *others = threads
    if is_in_tensorflow(main.frames):
        for thread in others:
            called = any(frame.startswith(_CALLBACK) for frame in thread.frames)
            if called and not is_in_tensorflow(thread.frames):
                return (*thread.frames, CALLED_BY, *main.frames)
    return main.frames


def shortened(frames: Sequence[str]) -> tuple[str, ...]:
    """Return at most twelve frames and say how many are omitted: native ones first, then from Python's middle."""
    if len(frames) <= MOST_FRAMES:
        return tuple(frames)
    first = next((at for at, frame in enumerate(frames) if not is_native(frame)), 0)
    last = max((at for at, frame in enumerate(frames) if not is_native(frame)), default=len(frames) - 1)
    inside = frames[:first] if first <= _NATIVE else (*frames[:_NATIVE], _left_out(first - _NATIVE))
    outside = (_left_out(len(frames) - last - 1),) if last < len(frames) - 1 else ()
    kept = _without_middle(frames[first : last + 1], MOST_FRAMES - len(inside) - len(outside))
    return (*inside, *kept, *outside)


def _without_middle(frames: Sequence[str], room: int) -> tuple[str, ...]:
    if len(frames) <= room:
        return tuple(frames)
    outer = min(_OUTERMOST, (room - 1) // 2)
    inner = room - 1 - outer
    return (*frames[:inner], _left_out(len(frames) - inner - outer), *frames[-outer:])


def _left_out(count: int) -> str:
    return f"... {counted(count, 'more frame')} ..."


def place_frames(frames: Sequence[str]) -> Iterator[str]:
    """Yield the frames that say where a task is, the innermost first.

    Python's library, the bootstrap and native code are left out unless there is nothing else. If the main thread
    waits for a function, only the frames of that function count."""
    own = frames[: frames.index(CALLED_BY)] if CALLED_BY in frames else frames
    kept = [frame for frame in own if not _CUT.fullmatch(frame)]
    yield from [frame for frame in kept if not _is_in_between(frame)] or kept


def is_in_tensorflow(frames: Sequence[str]) -> bool:
    """Whether a call into TensorFlow has not returned, as in a task that waits for its peers."""
    return next(place_frames(frames), "").startswith("tensorflow/")


def is_user_frame(frame: str) -> bool:
    """Whether the frame is in a file without a directory that is not in Python's library."""
    return "/" not in _file(frame) and not _is_in_between(frame)


def is_native(frame: str) -> bool:
    if frame == CALLED_BY or _CUT.fullmatch(frame):
        return False
    match = _FRAME_TEXT.fullmatch(frame)
    return match is None or _C_SOURCE.search(match["file"]) is not None


def describe_frame(frame: str) -> str:
    """Return a frame as text: `load_data (train.py:31)`."""
    match = _FRAME_TEXT.fullmatch(frame)
    place, function = frame.split(" ", 1) if match is None and " " in frame else (frame, "")
    if match is not None:
        function = match["function"]
        place = frame.removesuffix(f" {function}")
    return f"{function} ({place})" if function else place


def _is_in_between(frame: str) -> bool:
    file = _file(frame)
    top = file.partition("/")[0].removesuffix(".py")
    return is_native(frame) or top in sys.stdlib_module_names or file.startswith(("<frozen ", _BOOTSTRAP))


def _file(frame: str) -> str:
    match = _FRAME_TEXT.fullmatch(frame)
    return match["file"] if match else frame.partition(" ")[0]
