"""The preloader as the agent sees it: a child that has imported modules and forks tasks on request."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from worker.agent import task_start, tasks
from worker.agent.run_logs import RunFile, open_log
from worker.agent.task_start import INJECT, NO_PROXY, SEARCH_PATH, TaskPipes, TaskStart
from worker.agent.tasks import TaskProcess
from worker.bootstrap.import_reads import READ_AT_IMPORT, FileMark, mark
from worker.wire.messages import NotPreloaded, Preloaded, PreloadOrder

_INJECT_PRELOADER = INJECT.parent / "inject_preloader"
_OPTIONS = "ORCH_PRELOAD"
_MESSAGE_BYTES = 1 << 16
# Prefixes of variables that are always compared. Another variable is compared if an import has read it in Python.
_COMPARED = (*READ_AT_IMPORT, "PYTHON", "PATH", "HOME", "LANG", "LC_", "TZ", "MALLOC_", "GLIBC_")
# These differ between the runs and tests that a preloader serves.
_OF_ONE_RUN = ("ORCH_", "PYTEST_CURRENT_TEST")
# These differ between tasks. Imports do not read them: CUDA, DTensor, gRPC and the TPU resolver read them later, and
# PYTHONPATH differs by the bootstrap's directory.
_OF_ONE_TASK = (
    *("TF_CONFIG", SEARCH_PATH),
    *NO_PROXY,
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TF_FORCE_GPU_ALLOW_GROWTH"),
    *("DTENSOR_CLIENT_ID", "DTENSOR_NUM_CLIENTS", "DTENSOR_JOB_NAME", "DTENSOR_JOBS", "TPU_NAME"),
)


@dataclass(frozen=True)
class ForkRequest:
    """A fork that was requested. A closed stream cancels it unless its task was started."""

    start: TaskStart
    stream: socket.socket
    pipes: TaskPipes

    def adopt(self) -> TaskProcess | str | None:
        """Start the forked task and return it; a text if the fork failed; None if not known yet. Never blocks."""
        try:
            message, fds, _, _ = socket.recv_fds(self.stream, _MESSAGE_BYTES, 1)
        except BlockingIOError:
            return None
        except OSError as error:
            return str(error)
        if not fds:
            return _reason(message, "the preloader could not fork")
        pid = _living_child(fds[0])
        if pid is None or not self._go():
            os.close(fds[0])
            return "the forked process exited before it started"
        return tasks.adopted(self.start, pid, fds[0], self.pipes, "fork")

    def _go(self) -> bool:
        try:
            return self.stream.send(b"go") > 0
        except OSError:
            return False


class Preloader:
    """The preloader's process and the stream to it."""

    def __init__(self, order: PreloadOrder, log: RunFile) -> None:
        """Start it with this process's environment and the changes of the order. StartFailed, OSError."""
        # The modules that it imports; known when it is ready.
        self.modules = order.modules
        self.is_ready = False
        self._order = order
        self._env = {**os.environ, **order.env}
        # Files behind an import, and variables that an import has read.
        self._files: dict[str, FileMark | None] = {}
        self._read: Collection[str] = self._env.keys()
        self._log = log
        self.stream, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.stream.setblocking(False)
        with its:
            try:
                self.process = self._start(its)
            except BaseException:
                self.stream.close()
                raise

    def _start(self, its: socket.socket) -> subprocess.Popen[bytes]:
        order = self._order
        pythonpath = self._env.get(SEARCH_PATH)
        placeholder = f"/orch-preloader-{secrets.token_hex(8)}"
        options = {
            "control": its.fileno(),
            "interpreter": order.argv,
            "modules": order.modules,
            "installed_only": order.installed_only,
            "script_env": order.script_env,
            "cwd": order.cwd,
            "placeholder": placeholder,
            "pythonpath": pythonpath,
            "inject_preloader": str(_INJECT_PRELOADER),
            "inject": str(INJECT),
        }
        path = [str(_INJECT_PRELOADER), str(INJECT), *([pythonpath] if pythonpath else [])]
        env = {**self._env, _OPTIONS: json.dumps(options), SEARCH_PATH: ":".join(path)}
        log = open_log(self._log)
        try:
            return task_start.spawn([*order.argv, placeholder], env, order.cwd, log, (its.fileno(),))
        finally:
            os.close(log)

    def read(self) -> Preloaded | NotPreloaded | None:
        """Read its only message: it is ready, or cannot be used. None without one."""
        try:
            message, fds, _, _ = socket.recv_fds(self.stream, _MESSAGE_BYTES, 1)
        except BlockingIOError:
            return None
        except OSError:
            message, fds = b"", []
        if not fds:
            return NotPreloaded(_reason(message, f"the preloader has ended; see {self._log.path}"))
        with os.fdopen(fds[0]) as sheet:
            sheet.seek(0)
            found = json.load(sheet)
        self.modules, self._read = tuple(found["modules"]), set(found["variables"])
        self._files = {file: tuple(was) if was else None for file, was in found["files"].items()}
        self.is_ready = True
        return Preloaded(self.modules, float(json.loads(message)["ready"]))

    def why_unfit(self, order: PreloadOrder) -> str | None:
        """Return why it cannot serve another order; None if the imports would be the same."""
        own = self._order
        if own.argv != order.argv:
            return "the interpreter or its options have changed"
        if own.cwd != order.cwd:
            return f"the directory was {own.cwd}"
        if own.modules != order.modules:
            return f"the modules to preload were {', '.join(own.modules)}"
        if (name := self._differing(own.script_env, order.script_env)) is not None:
            return f"the script sets {name} in another way before its imports"
        if (name := self._differing(self._env, {**os.environ, **order.env})) is not None:
            return f"the variable {name} has changed"
        return next((f"{file} has changed" for file, was in self._files.items() if mark(file) != was), None)

    def _differing(self, first: Mapping[str, str], second: Mapping[str, str]) -> str | None:
        """Return the first variable that differs and decides what an import does."""
        for name in sorted(first.keys() | second.keys()):
            is_compared = name in self._read or name.startswith(_COMPARED)
            if is_compared and first.get(name) != second.get(name) and not name.startswith(_OF_ONE_RUN):
                return name
        return None

    def fork(self, start: TaskStart) -> ForkRequest:
        """Request a task. OSError if its log cannot be opened, BlockingIOError with too many open requests."""
        env = start.environ()
        fields = {
            "argv": start.order.argv,
            "env": env,
            "ordered": self._env,
            "differing": self._differing(_without(self._env, _OF_ONE_TASK), _without(env, _OF_ONE_TASK)),
            "cwd": start.order.cwd,
            "agent": os.getpid(),
            "descriptors": list(start.descriptors),
        }
        pipes = TaskPipes(start.log)
        stream, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stream.setblocking(False)
        sheet = os.memfd_create("orch-task", os.MFD_CLOEXEC)
        with its, os.fdopen(sheet, "wb") as file:
            try:
                file.write(json.dumps(fields).encode())
                file.flush()
                passed = [sheet, pipes.log, pipes.progress_in, its.fileno(), *start.descriptors.values()]
                socket.send_fds(self.stream, [b"fork"], passed)
            except BaseException:
                stream.close()
                pipes.close()
                raise
        pipes.close_input()
        return ForkRequest(start, stream, pipes)


def _without(env: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in names}


def _living_child(pidfd: int) -> int | None:
    """Return the pid; None if the process has exited."""
    try:
        if os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return None
    except ChildProcessError:
        return None
    lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pid:"))


def _reason(message: bytes, otherwise: str) -> str:
    """Return the reason in the preloader's message; `otherwise` without one."""
    try:
        return str(json.loads(message)["cannot"])
    except (ValueError, KeyError, TypeError):
        return otherwise
