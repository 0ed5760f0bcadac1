"""The preloader process as the agent sees it: a child that has imported modules and forks tasks on request."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from worker.agent import task_process
from worker.agent.run_logs import RunFile, open_log
from worker.agent.task_process import INJECT, NO_PROXY, SEARCH_PATH, TaskOrder, TaskPipes, TaskProcess

_INJECT_PRELOADER = INJECT.parent / "inject_preloader"
_OPTIONS = "ORCH_PRELOAD"
_MESSAGE_BYTES = 1 << 16
# Prefixes of variables that differ between runs or tests. A preloader can serve several.
_OF_ONE_RUN = ("ORCH_", "PYTEST_CURRENT_TEST")
# Variables that differ between tasks. Imports do not read them: CUDA, DTensor, gRPC and the TPU resolver read them
# later, and PYTHONPATH differs by the bootstrap's directory.
_OF_ONE_TASK = (
    *("TF_CONFIG", SEARCH_PATH),
    *NO_PROXY,
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TF_FORCE_GPU_ALLOW_GROWTH"),
    *("DTENSOR_CLIENT_ID", "DTENSOR_NUM_CLIENTS", "DTENSOR_JOB_NAME", "DTENSOR_JOBS", "TPU_NAME"),
)


@dataclass(frozen=True)
class PreloadOrder:
    """The modules to import, the interpreter with its options, the directory and the complete environment.

    `script_env` holds what the script sets before it imports the modules."""

    argv: list[str]
    env: Mapping[str, str]
    cwd: str
    modules: list[str]
    script_env: Mapping[str, str]

    def is_like(self, other: PreloadOrder) -> bool:
        """Whether one preloader can serve both orders, whatever run they belong to."""
        return self._comparable() == other._comparable()

    def _comparable(self) -> tuple[object, ...]:
        env = {name: value for name, value in self.env.items() if not name.startswith(_OF_ONE_RUN)}
        return self.argv, env, self.cwd, self.modules, self.script_env

    def differing(self, env: Mapping[str, str]) -> str | None:
        """Return the first variable that the imports may have read with another value than in `env`."""
        for name in sorted(env.keys() | self.env.keys()):
            if name.startswith(_OF_ONE_RUN) or name in _OF_ONE_TASK:
                continue
            if env.get(name) != self.env.get(name):
                return name
        return None


class ForkRequest:
    """A fork that was requested. close() cancels it unless its task was adopted."""

    def __init__(self, order: TaskOrder, stream: socket.socket, pipes: TaskPipes) -> None:
        self.order = order
        self._stream = stream
        self._pipes = pipes

    def fileno(self) -> int:
        return self._stream.fileno()

    def adopt(self) -> TaskProcess | str | None:
        """Start the forked task and return it; a text if the fork failed; None if not known yet. Never blocks."""
        try:
            message, fds, _, _ = socket.recv_fds(self._stream, _MESSAGE_BYTES, 1)
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
        return task_process.adopted(self.order, pid, fds[0], self._pipes, "fork")

    def _go(self) -> bool:
        try:
            return self._stream.send(b"go") > 0
        except OSError:
            return False

    def close(self) -> None:
        self._stream.close()
        self._pipes.close()


class Preloader:
    """Owns the preloader's process and its stream. `reason` says why it cannot be used; None while it can."""

    def __init__(self, order: PreloadOrder, log: RunFile) -> None:
        self.order = order
        self.is_ready = False
        self.seconds = 0.0
        self.reason: str | None = None
        # Imported file -> [modification time in ns, size in bytes]; None if it could not be read.
        self._files: dict[str, list[int] | None] = {}
        self._log = log
        self._stream, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._stream.setblocking(False)
        try:
            self._process = self._start(its)
        except BaseException:
            self._stream.close()
            raise
        finally:
            its.close()

    def _start(self, its: socket.socket) -> subprocess.Popen[bytes]:
        env = dict(self.order.env)
        pythonpath = env.get(SEARCH_PATH)
        placeholder = f"/orch-preloader-{secrets.token_hex(8)}"
        options = {
            "control": its.fileno(),
            "interpreter": self.order.argv,
            "modules": self.order.modules,
            "script_env": self.order.script_env,
            "cwd": self.order.cwd,
            "placeholder": placeholder,
            "pythonpath": pythonpath,
            "inject_preloader": str(_INJECT_PRELOADER),
            "inject": str(INJECT),
        }
        path = [str(_INJECT_PRELOADER), str(INJECT), *([pythonpath] if pythonpath else [])]
        env |= {_OPTIONS: json.dumps(options), SEARCH_PATH: ":".join(path)}
        log = open_log(self._log)
        try:
            return task_process.spawn(
                [*self.order.argv, placeholder], env, self.order.cwd, log, (its.fileno(),)
            )
        finally:
            os.close(log)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._stream.fileno()

    def read(self) -> None:
        """Read a message from it. Afterwards it is ready, or `reason` says why not."""
        try:
            message, fds, _, _ = socket.recv_fds(self._stream, _MESSAGE_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            message, fds = b"", []
        if fds:
            with os.fdopen(fds[0]) as sheet:
                sheet.seek(0)
                self._files = json.load(sheet)
            self.is_ready = True
            self.seconds = float(json.loads(message)["ready"])
        else:
            self.is_ready = False
            self.reason = _reason(message, f"the preloader has ended; see {self._log.path}")

    def serves(self, order: PreloadOrder) -> bool:
        """Whether it fits `order` and no file that it has imported was changed."""
        return self.order.is_like(order) and all(_file_mark(file) == was for file, was in self._files.items())

    def fork(self, order: TaskOrder) -> ForkRequest:
        """Request a task. OSError if its log cannot be opened, BlockingIOError with too many open requests."""
        env = order.environ()
        fields = {
            "argv": order.argv,
            "env": env,
            "ordered": self.order.env,
            "differing": self.order.differing(env),
            "cwd": order.cwd,
            "agent": os.getpid(),
            "descriptors": list(order.descriptors),
        }
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        pipes = TaskPipes(order.log)
        request = ForkRequest(order, ours, pipes)
        sheet = os.memfd_create("orch-task", os.MFD_CLOEXEC)
        try:
            with open(sheet, "wb", closefd=False) as file:
                file.write(json.dumps(fields).encode())
            passed = [sheet, pipes.log, pipes.progress_in, its.fileno(), *order.descriptors.values()]
            socket.send_fds(self._stream, [b"fork"], passed)
        except BaseException:
            request.close()
            raise
        finally:
            os.close(sheet)
            its.close()
        pipes.close_input()
        return request

    def reap(self) -> None:
        """Read its exit status."""
        self._process.wait()

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Kill it and wait for its exit. It holds no data."""
        self._stream.close()
        self._process.kill()
        self._process.wait()


def _living_child(pidfd: int) -> int | None:
    """Return the pid; None if the process has exited."""
    try:
        if os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return None
    except ChildProcessError:
        return None
    lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pid:"))


def _file_mark(file: str) -> list[int] | None:
    """Return [modification time, size] in the format of the bootstrap's preloader."""
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return [found.st_mtime_ns, found.st_size]


def _reason(message: bytes, otherwise: str) -> str:
    """Return the reason in the preloader's message; `otherwise` without one."""
    try:
        return str(json.loads(message)["cannot"])
    except (ValueError, KeyError, TypeError):
        return otherwise
