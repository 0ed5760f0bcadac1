"""The preloader: imports once, in one thread, what tasks will need, then forks tasks for the agent."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from . import forked_task
from .forked_task import NoSuchProgram, Program, ProgramSlot, parse
from .import_reads import ImportReads, is_installed
from .import_record import ImportRecord
from .messages import log
from .preload_imports import preload, restore_openblas_threads
from .preloaded_modules import PreloadedModules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OPTIONS = "ORCH_PRELOAD"
_DEVICES = ("/dev/nvidia", "/dev/dri", "/dev/kfd", "/dev/accel", "/dev/vfio", "/dev/dxg")
# Most characters of an error that are sent to the agent.
_LONGEST_REASON = 4096
# Added to the preloader's score when memory runs out: tasks can still be spawned without it.
_OOM_SCORE_MORE = 300
# The same as in worker/wire/stream.py.
_MOST_DESCRIPTORS = 16
_SEARCH_PATH = "PYTHONPATH"


def serve(record: ImportRecord) -> None:
    """Import the modules, then fork a task for each request of the agent.

    It returns in the forked tasks only, which continue with their interpreter's start. The preloader itself exits
    when the agent closes the stream.
    """
    options = json.loads(os.environ.pop(OPTIONS))
    control = socket.socket(fileno=options["control"])
    control.set_inheritable(False)
    try:
        start = InterpreterStart(options)
        began = time.monotonic()
        with record:
            slot, reads = ProgramSlot(options["placeholder"]), ImportReads()
            names = _chosen(options["modules"], options["installed_only"])
            modules = preload(record, reads, names, options["script_env"])
        _check_forkable(control.fileno())
        gc.freeze()
        files = reads.files(record.new_modules())
        found = {"modules": names, "files": files, "variables": sorted(reads.variables)}
        _send_ready(control, time.monotonic() - began, found)
        request = _fork_tasks(control, start, modules)
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        _answer(control, cannot=_reason(error))
        os._exit(1)
    # From here on this process is the task.
    slot.fill(request.program, request.argv)
    modules.hide(log, {"numpy": restore_openblas_threads})
    _replace_main()
    gc.enable()


def _chosen(names: Sequence[str], installed_only: bool) -> list[str]:
    """Return the modules to import. A preloader that is kept for other runs imports none of the user's own."""
    chosen = [name for name in names if not installed_only or is_installed(name)]
    if names and not chosen:
        raise CannotFork(f"{names[0]} is not an installed package, and the preloader is kept for other runs")
    return chosen


def _replace_main() -> None:
    """Replace `__main__`, which is frozen, so that Python frees the script's variables at its end."""
    kept = vars(sys.modules["__main__"])
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main).clear()
    vars(main).update(kept)


def _check_forkable(control: int) -> None:
    """Raise CannotFork if a fork of this process would differ from a new process."""
    if sys.implementation.name != "cpython" or sys.version_info < (3, 11):
        raise CannotFork(f"{sys.implementation.name} {sys.version.split()[0]} is not CPython 3.11 or later")
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 (only how many)
    if threads != 1:
        raise CannotFork(f"what was preloaded has started {threads - 1} threads")
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) <= 2 or int(entry.name) == control or not entry.is_symlink():
            continue
        target = str(entry.readlink())
        kind = "a device" if target.startswith(_DEVICES) else "a file"
        raise CannotFork(f"what was preloaded holds {kind} open: {target}")
    if sys.gettrace() is not None or sys.getprofile() is not None:
        raise CannotFork("the interpreter is being traced")


def _fork_tasks(control: socket.socket, start: InterpreterStart, modules: PreloadedModules) -> TaskRequest:
    """Fork a task for each request; return in the tasks. A refused request is answered with the reason."""
    oom_score = forked_task.adjust_oom_score(_OOM_SCORE_MORE)
    # A fork would copy buffered output.
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    ctypes.CDLL(None).fflush(None)
    while True:
        message, fds, _, _ = socket.recv_fds(control, 16, 4 + _MOST_DESCRIPTORS)
        if not message:
            os._exit(0)
        fields, log_fd, progress, go, *passed = fds
        with socket.socket(fileno=go) as agent:
            try:
                request = TaskRequest(fields, start, modules)
                parent = _fork_twice()
            except (CannotFork, NoSuchProgram, OSError) as error:
                _answer(agent, cannot=_reason(error))
                parent = None
            if parent is not None:
                control.close()
                forked_task.report_to_agent(agent, request.agent, parent)
        if parent is not None:
            forked_task.set_oom_score(oom_score)
            descriptors = dict(zip(request.descriptors, passed, strict=True))
            forked_task.take_over(request.argv, request.env, log_fd, progress, descriptors)
            return request
        for fd in (log_fd, progress, *passed):
            os.close(fd)


def _fork_twice() -> int | None:
    """Return the parent's pid in the task, None in the preloader.
    The parent exits at once, so that the agent, the nearest subreaper above, becomes the task's parent."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return None
    # In the task, os.getppid() may already return the agent.
    between = os.getpid()
    try:
        task = os.fork()
    except OSError:
        os._exit(1)  # the agent sees the end of its stream to the task
    if task:
        os._exit(0)
    return between


def _send_ready(control: socket.socket, seconds: float, found: Mapping[str, object]) -> None:
    """Send the duration, and a descriptor of a file with what was `found`: it may not fit into a message."""
    sheet = os.memfd_create("orch-preloaded", os.MFD_CLOEXEC)
    with os.fdopen(sheet, "w") as file:
        file.write(json.dumps(found))
        file.flush()
        socket.send_fds(control, [json.dumps({"ready": seconds}).encode()], [sheet])


def _answer(stream: socket.socket, **fields: object) -> None:
    try:
        stream.send(json.dumps(fields).encode())
    except OSError:
        return  # the agent no longer waits for it


def _reason(error: BaseException) -> str:
    text = str(error) if isinstance(error, CannotFork | NoSuchProgram) else f"{type(error).__name__}: {error}"
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}... (the rest is in its log)"


class CannotFork(Exception):
    """The reason why a task must be spawned."""


class InterpreterStart:
    """This interpreter's command line, directory and environment after its start.

    A `python` that is a shell script (a version manager's shim), or Python's site, may change what was ordered. They
    would do the same to a spawned task. Create this object before anything is imported: it removes the preloader's
    own entries from os.environ.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options`: interpreter and cwd as ordered, placeholder; inject_preloader and inject, the directories put in
        front of PYTHONPATH; pythonpath, its value without them."""
        self.cwd: str = options["cwd"]
        self._ordered: list[str] = options["interpreter"]
        if sys.orig_argv[-1] != options["placeholder"]:
            raise CannotFork("its interpreter is a script that adds words to the command line")
        self.interpreter = sys.orig_argv[:-1]
        entries = os.environ.pop(_SEARCH_PATH, "").split(":")
        path = [entry for entry in entries if entry != options["inject_preloader"]]
        self._search_path = ":".join(path)
        own = [entry for entry in path if entry != options["inject"]]
        self.own_search_path = [entry for entry in own if entry.startswith("/")]
        if own:
            os.environ[_SEARCH_PATH] = ":".join(own)
        elif options["pythonpath"] is not None:
            os.environ[_SEARCH_PATH] = options["pythonpath"]
        self._found = {name: value for name, value in os.environ.items() if name != _SEARCH_PATH}

    def words(self, argv: Sequence[str]) -> list[str]:
        """The words after the interpreter and its options; CannotFork if those differ from this interpreter's."""
        if list(argv[: len(self._ordered)]) != self._ordered:
            raise CannotFork("it runs under another interpreter, or with other options")
        return list(argv[len(self._ordered) :])

    def env(self, task: Mapping[str, str], ordered: Mapping[str, str]) -> dict[str, str]:
        """The environment `task` with the changes that this interpreter's start made to its own, `ordered`."""
        env = dict(task)
        for name in self._found.keys() | ordered.keys():
            found = self._found.get(name)
            if found == ordered.get(name) or name == _SEARCH_PATH:
                continue
            if found is None:
                env.pop(name, None)
            else:
                env[name] = found
        env[_SEARCH_PATH] = self._search_path
        return env


class TaskRequest:
    """A task to fork: its command line `argv`, its whole environment `env`, its program, the agent's pid, and the names
    of the descriptors that come with it."""

    def __init__(self, fd: int, start: InterpreterStart, modules: PreloadedModules) -> None:
        """Read the request from `fd`, which is closed. CannotFork if the task must be spawned."""
        with open(fd, "rb") as file:
            fields = json.loads(os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0))
        words = start.words(fields["argv"])
        if fields["cwd"] != start.cwd:
            raise CannotFork("it runs in another directory")
        if fields["differing"] is not None:
            raise CannotFork(f"its environment has another {fields['differing']}")
        self.argv: list[str] = [*start.interpreter, *words]
        self.env: dict[str, str] = start.env(fields["env"], fields["ordered"])
        self.agent: int = fields["agent"]
        self.descriptors: list[str] = fields["descriptors"]
        self.program: Program = parse(words, fields["cwd"])
        directory = self.program.first_path
        if not sys.flags.safe_path and (names := modules.shadowed_in(directory)):
            raise CannotFork(f"{directory} has a module {names[0]} of its own")
        if (shadowed := modules.shadowed_on(start.own_search_path)) is not None:
            raise CannotFork(f"{shadowed[0]} has a module {shadowed[1]} of its own")
