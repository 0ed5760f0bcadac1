"""The preloader: imports once, in one thread, what tasks will need, then forks tasks for the agent."""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from . import blas_threads, forked_task
from .import_record import ImportRecord
from .main_module import NoSuchProgram, Program, ProgramSlot, parse
from .preloaded_files import FileMark, preloaded_files
from .preloaded_modules import ImportEffects, PreloadedModules
from .surroundings import CannotFork, Surroundings

OPTIONS = "ORCH_PRELOAD"
_DEVICES = ("/dev/nvidia", "/dev/dri", "/dev/kfd", "/dev/accel", "/dev/vfio", "/dev/dxg")
# Characters of an error that go to the agent.
_LONGEST_REASON = 4096
# Nobody waits for it: should memory run out, tasks can still be started without it.
_OOM_SCORE_MORE = 300
# What these import only when they are first used, up to the first step of a training, without any other effect than
# the time it takes.
_IMPORTED_LATER = {
    "numpy": ("numpy.random",),
    "tensorflow": tuple(
        f"tensorflow.python.data.ops.{name}_op" for name in ("flat_map", "from_tensors", "range", "zip")
    ),
    "tf_keras": ("tf_keras.api._v2.keras", "tf_keras.src.engine.base_layer_v1"),
}


def serve(record: ImportRecord) -> None:
    """Import, then fork whenever the agent asks. Returns in the forked tasks alone, which go on with their
    start-up; the preloader itself ends with the agent's end of the stream."""
    options = json.loads(os.environ.pop(OPTIONS))
    control = socket.socket(fileno=options["control"])
    control.set_inheritable(False)
    try:
        surroundings = Surroundings(options)
        began = time.monotonic()
        with record:
            slot = ProgramSlot(options["placeholder"])
            modules = _preload(record, options["modules"], options["script_env"])
        _check(control.fileno())
        gc.freeze()
        files = preloaded_files(record.new_modules(), options["modules"])
        _tell_ready(control, time.monotonic() - began, files)
        request = _wait_for_a_task(control, surroundings, modules)
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        _answer(control, cannot=_reason(error))
        os._exit(1)
    # From here on this process is the task.
    slot.fill(request.program, request.argv)
    modules.hide(_say, {"numpy": blas_threads.restore})
    _begin_main_anew()
    gc.enable()


def _begin_main_anew() -> None:
    """Another module `__main__` than the frozen one: the script's variables are to be freed at its end."""
    kept = vars(sys.modules["__main__"])
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main).clear()
    vars(main).update(kept)


class Request:
    """One task as the agent asks for it: argv, env (all of it) and the agent's pid."""

    def __init__(self, fd: int, surroundings: Surroundings, modules: PreloadedModules) -> None:
        with open(fd, "rb") as file:
            fields = json.loads(os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0))
        words = surroundings.words(fields["argv"])
        if fields["cwd"] != surroundings.cwd:
            raise CannotFork("it runs in another directory")
        if fields["differing"] is not None:
            raise CannotFork(f"its environment has another {fields['differing']}")
        self.argv: list[str] = [*surroundings.interpreter, *words]
        self.env: dict[str, str] = surroundings.env(fields["env"], fields["ordered"])
        self.agent: int = fields["agent"]
        self.program: Program = parse(words, fields["cwd"])
        directory = self.program.first_path
        if not sys.flags.safe_path and (names := modules.shadowed_in(directory)):
            raise CannotFork(f"{directory} has a module {names[0]} of its own")


def _preload(record: ImportRecord, names: Sequence[str], script_env: Mapping[str, str]) -> PreloadedModules:
    search_path = list(sys.path)
    gc.disable()  # nothing that an import makes is garbage soon, and looking for it takes a fifth of the time
    effects = []
    began_with = dict(os.environ)
    os.environ.update(script_env)
    with blas_threads.one():
        for name in names:
            environ, filters = dict(os.environ), list(warnings.filters)
            before = set(sys.modules)
            importlib.import_module(name)
            record.note(name, sys.modules.keys() - before)
            _import_what_comes_later()
            changed = {key: value for key, value in os.environ.items() if environ.get(key) != value}
            added = [each for each in warnings.filters if each not in filters]
            effects.append(ImportEffects(name, changed, added))
            for key in changed.keys() - environ.keys():
                del os.environ[key]
            os.environ.update({key: environ[key] for key in changed.keys() & environ.keys()})
            warnings.filters[:] = filters  # type: ignore[index]
    # The tasks begin without what their script is to set.
    for key in script_env:
        if key in began_with:
            os.environ[key] = began_with[key]
        else:
            os.environ.pop(key, None)
    return PreloadedModules(record, effects, search_path, script_env)


def _import_what_comes_later() -> None:
    for name, modules in _IMPORTED_LATER.items():
        for each in modules if name in sys.modules else ():
            try:
                importlib.import_module(each)
            except ImportError:  # of another version of the library
                continue


def _check(control: int) -> None:
    """CannotFork unless this process is as good as a new one to be forked."""
    if sys.implementation.name != "cpython" or sys.version_info < (3, 11):
        raise CannotFork(f"{sys.implementation.name} {sys.version.split()[0]} is no CPython from 3.11 on")
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


def _wait_for_a_task(
    control: socket.socket, surroundings: Surroundings, modules: PreloadedModules
) -> Request:
    """Fork a task for each request; returns in the tasks. What cannot be forked is told to the agent."""
    oom_score = forked_task.adjust_oom_score(_OOM_SCORE_MORE)
    # What waits to be written is the preloader's to say.
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    ctypes.CDLL(None).fflush(None)
    while True:
        message, fds, _, _ = socket.recv_fds(control, 16, 4)
        if not message:
            os._exit(0)
        fields, log, progress, go = fds
        with socket.socket(fileno=go) as agent:
            try:
                request = Request(fields, surroundings, modules)
                parent = _fork()
            except (CannotFork, NoSuchProgram, OSError) as error:
                _answer(agent, cannot=_reason(error))
                parent = None
            if parent is not None:
                control.close()
                forked_task.report(agent, request.agent, parent)
        if parent is not None:
            forked_task.set_oom_score(oom_score)
            forked_task.dress(request.argv, request.env, log, progress)
            return request
        os.close(log)
        os.close(progress)


def _fork() -> int | None:
    """In the task the pid of its parent, which is about to be followed by the agent, the nearest subreaper above."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return None
    # Asked by the task, it might already be who comes after.
    between = os.getpid()
    try:
        task = os.fork()
    except OSError:
        os._exit(1)  # the agent sees its stream to the task end
    if task:
        os._exit(0)
    return between


def _tell_ready(control: socket.socket, seconds: float, files: Mapping[str, FileMark | None]) -> None:
    """With the files in a file, as their names may be more than a message holds."""
    sheet = os.memfd_create("orch-preloaded", os.MFD_CLOEXEC)
    with os.fdopen(sheet, "w") as file:
        json.dump(files, file)
        file.flush()
        socket.send_fds(control, [json.dumps({"ready": seconds}).encode()], [sheet])


def _answer(stream: socket.socket, **fields: object) -> None:
    try:
        stream.send(json.dumps(fields).encode())
    except OSError:
        return  # the agent has given this one up


def _reason(error: BaseException) -> str:
    text = str(error) if isinstance(error, CannotFork | NoSuchProgram) else f"{type(error).__name__}: {error}"
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}... (the rest is in its log)"


def _say(line: str) -> None:
    print(f"orch: {line}", file=sys.stderr, flush=True)
