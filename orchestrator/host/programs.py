"""Find scripts, executables and their interpreters on this machine. A UsageError suggests similar names."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.core.text.nearest import did_you_mean, nearest
from orchestrator.host.installed import has_tensorflow

PYTHON = re.compile(r"python(\d+(\.\d+)*)?\Z", re.ASCII)
_MAX_SHEBANG_BYTES = 1024
# Written by installers if the interpreter's path is too long for a first line.
_LONG_SHEBANG = re.compile(rb"#!/bin/sh\n'''exec' \"?([^\"\s]+)\"? \"\$0\" \"\$@\"\n")
# Similarity from which a file name is suggested. Short names with the same ending are always similar.
_NEAR_FILE = 0.75
# Names of orch's own open files, among them its standard input and the pipe of `<(command)`.
_DESCRIPTORS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
SAVE_PROGRAM = "save the program as a file, and name it"


def user_python(environ: Mapping[str, str], path: str) -> str:
    """The Python of the active virtual environment, else orch's own if it has TensorFlow, else the first on `path`."""
    if active := environ.get("VIRTUAL_ENV"):
        python = Path(active) / "bin" / "python"
        if os.access(python, os.X_OK):
            return str(python)
    if has_tensorflow():
        return sys.executable
    found = shutil.which("python3", path=path) or shutil.which("python", path=path)
    return str(Path(found).absolute()) if found else sys.executable


def is_on_path(python: str, environ: Mapping[str, str]) -> bool:
    """Whether it is a Python of the active virtual environment or of an absolute directory on PATH: one that the user
    chose, not the current directory."""
    places = [
        place for place in environ.get("PATH", os.defpath).split(os.pathsep) if Path(place).is_absolute()
    ]
    if active := environ.get("VIRTUAL_ENV"):
        places.append(f"{active}/bin")
    return bool(PYTHON.match(Path(python).name)) and Path(python).parent in map(Path, places)


def require_script(word: str, cwd: Path) -> None:
    """Check for a Python script, or a directory with a __main__.py."""
    path = cwd / word
    if not _is_directory(path):
        require_file(word, cwd, "script")
    elif not stat.S_ISREG(_mode(path / "__main__.py") or 0):
        raise UsageError(f"{word} in {cwd} is a directory without a __main__.py; name a script in it")


def _kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a named pipe"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


def open_without_waiting(path: str, flags: int) -> int:
    """Open a file (as `opener`). Without O_NONBLOCK, opening a named pipe waits for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def require_file(word: str, cwd: Path, what: str) -> Path:
    """The path of a file; `what` is "script" or "program". A script must be readable."""
    path = cwd / word
    if _is_directory(path):
        raise UsageError(f"{word} in {cwd} is a directory, not a {what}; name the {what} in it")
    if str(path).startswith(_DESCRIPTORS):
        raise UsageError(f"{word} is a stream of orch, and tasks do not get it; {SAVE_PROGRAM}")
    mode = _mode(path)
    if mode is None:
        raise UsageError(f"{what} not found: {word} in {cwd}{_near_file(path)}")
    if not stat.S_ISREG(mode):
        raise UsageError(f"{path} is not a regular file, but {_kind(mode)}; {SAVE_PROGRAM}")
    if what == "script" and not os.access(path, os.R_OK):
        raise UsageError(f"{what} not readable: {path}; chmod +r it")
    return path


def require_interpreter(program: Path, cwd: Path) -> None:
    """Check that the interpreter exists which a script's first line names."""
    line, end, _ = _head(program).partition(b"\n")
    if not line.startswith(b"#!") or not end:
        return
    # The kernel takes a carriage return for a part of the name.
    interpreter = os.fsdecode(re.split(rb"[ \t]", line[2:].strip(b" \t"), maxsplit=1)[0])
    if interpreter and _mode(cwd / interpreter) is None:
        windows = "; remove the carriage return at its end" if interpreter.endswith("\r") else ""
        raise UsageError(
            f"{program}: its first line names the interpreter {interpreter.rstrip()}, which does not exist{windows};"
            " correct the line, or write the interpreter before the program"
        )


def _head(program: Path) -> bytes:
    try:
        with open(program, "rb", opener=open_without_waiting) as file:
            return file.read(_MAX_SHEBANG_BYTES)
    except OSError:
        return b""


def shebang_python(program: Path, path: str) -> tuple[str, ...] | None:
    """The interpreter and option that a script's first line names; None if it names no Python that exists. `path`: the
    tasks' PATH."""
    head = _head(program)
    if found := _LONG_SHEBANG.match(head):
        words = [os.fsdecode(found[1])]
    elif head.startswith(b"#!") and b"\n" in head:
        # As in the kernel, everything after the first blank is one argument.
        words = os.fsdecode(head[2:].partition(b"\n")[0]).strip(" \t\r").split(None, 1)
    else:
        return None
    if words and Path(words[0]).name == "env" and len(words) == 2 and not words[1].startswith("-"):
        interpreter = shutil.which(words[1], path=path)
        words = [str(Path(interpreter).absolute())] if interpreter and " " not in words[1] else []
    if not words or not PYTHON.match(Path(words[0]).name) or not os.access(words[0], os.X_OK):
        return None
    return tuple(words)


def _mode(path: Path) -> int | None:
    """The file's mode, None if it does not exist."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give a path that can be reached") from error


def _is_directory(path: Path) -> bool:
    return stat.S_ISDIR(_mode(path) or 0)


def find_executable(word: str, cwd: Path, path: str) -> str:
    """The absolute path of an executable, looked up as a shell does. `path`: the tasks' PATH."""
    if not word:
        raise UsageError(
            "the command is an empty word; after -- name a script, a module (-m) or an executable"
        )
    if "/" not in word:
        found = shutil.which(word, path=path)
        if found is None:
            raise UsageError(f"command not found: {word} is not on PATH{_near_command(word, cwd, path)}")
        return str(Path(found).absolute())
    file = require_file(word, cwd, "program")
    if not os.access(file, os.X_OK):
        advice = f"chmod +x it, or start it by its interpreter: -- bash {word}"
        raise UsageError(f"not executable: {file}; {advice}")
    return str(file)


def _near_file(path: Path) -> str:
    names = _names_in(path.parent)
    if names is None:
        return f"; the directory {path.parent} does not exist"
    scripts = sorted(name for name in names if name.endswith(path.suffix or ".py"))
    there = f"there are: {', '.join(scripts[:5])}" if scripts else "is --cwd right?"
    return f"; {did_you_mean(path.name, scripts, there, _NEAR_FILE)}"


def _near_command(word: str, cwd: Path, path: str) -> str:
    here = _names_in(cwd) or []
    if word in here:
        return f"; for the one in {cwd} write ./{word}"
    if f"{word}.py" in here:
        return f'; did you mean "{word}.py"?'
    scripts = sorted(name for name in here if name.endswith(".py"))
    if (script := nearest(word, scripts, _NEAR_FILE)) is not None:
        return f'; did you mean "{script}"?'
    on_path = {name for folder in path.split(os.pathsep) for name in _names_in(Path(folder)) or []}
    return f"; {did_you_mean(word, sorted(on_path), 'install it, or give its path')}"


def _names_in(directory: Path) -> list[str] | None:
    try:
        return [entry.name for entry in directory.iterdir()]
    except OSError:
        return None
