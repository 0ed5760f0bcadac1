"""The preloader process as the agent sees it: a child that has imported modules and forks tasks on request."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from worker.agent import task_process
from worker.agent.run_logs import RunFile, open_log
from worker.agent.task_process import INJECT, NO_PROXY, SEARCH_PATH, TaskPipes, TaskProcess, TaskStart
from worker.wire.messages import PreloadOrder

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
# Variables that differ between the terminals of a user. They count only if an import has read them in Python.
_OF_ONE_TERMINAL = frozenset(
    (
        *(
            "_",
            "SHLVL",
            "OLDPWD",
            "COLUMNS",
            "LINES",
            "TERM",
            "TERM_SESSION_ID",
            "COLORTERM",
            "COLORFGBG",
            "DISPLAY",
        ),
        *("GPG_TTY", "STY", "WINDOW", "WINDOWID", "WINDOWPATH", "WAYLAND_DISPLAY", "TERMINAL_EMULATOR"),
        *("TERMINATOR_UUID", "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "GIT_ASKPASS"),
    )
)
_OF_ONE_TERMINAL_PREFIXES = (
    *(
        "TERM_PROGRAM",
        "TMUX",
        "SSH_",
        "VSCODE_",
        "VTE_",
        "GNOME_TERMINAL_",
        "KITTY_",
        "ALACRITTY_",
        "WEZTERM_",
    ),
    *("KONSOLE_", "ITERM_", "LC_TERMINAL", "XDG_SESSION_", "XDG_VTNR", "XDG_SEAT", "DBUS_SESSION_"),
)


def _first_differing(
    first: Mapping[str, str], second: Mapping[str, str], but: Callable[[str], bool] = lambda name: False
) -> str | None:
    """Return the first variable that differs, except those of one run and those for which `but` is true."""
    for name in sorted(first.keys() | second.keys()):
        if first.get(name) != second.get(name) and not name.startswith(_OF_ONE_RUN) and not but(name):
            return name
    return None


def _is_of_one_terminal(name: str, seen: Collection[str]) -> bool:
    return name not in seen and (name in _OF_ONE_TERMINAL or name.startswith(_OF_ONE_TERMINAL_PREFIXES))


def _is_of_one_task(name: str, seen: Collection[str]) -> bool:
    return name in _OF_ONE_TASK or _is_of_one_terminal(name, seen)


class ForkRequest:
    """A fork that was requested. close() cancels it unless its task was adopted."""

    def __init__(self, start: TaskStart, stream: socket.socket, pipes: TaskPipes) -> None:
        self.start = start
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
        return task_process.adopted(self.start, pid, fds[0], self._pipes, "fork")

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
        """The preloader gets this process's environment with the changes of the order."""
        self.order = order
        self._env = {**os.environ, **order.env}
        # The modules that it imports; known when it is ready.
        self.modules = order.modules
        self.is_ready = False
        self.seconds = 0.0
        self.reason: str | None = None
        # File behind an import -> [modification time in ns, size in bytes]; None if it could not be read.
        self._files: dict[str, list[int] | None] = {}
        # The variables that the imports have read; not known before it is ready.
        self._seen: frozenset[str] = _OF_ONE_TERMINAL
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
        env = dict(self._env)
        pythonpath = env.get(SEARCH_PATH)
        placeholder = f"/orch-preloader-{secrets.token_hex(8)}"
        options = {
            "control": its.fileno(),
            "interpreter": self.order.argv,
            "modules": self.order.modules,
            "installed_only": self.order.installed_only,
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
                found = json.load(sheet)
            self.modules, self._files = found["modules"], found["files"]
            self._seen = frozenset(found["variables"])
            self.is_ready = True
            self.seconds = float(json.loads(message)["ready"])
        else:
            self.is_ready = False
            self.reason = _reason(message, f"the preloader has ended; see {self._log.path}")

    def why_unfit(self, order: PreloadOrder) -> str | None:
        """Why it cannot serve `order`; None if it can: the order is like its own, and no file behind an import has
        changed."""
        changed = (f"{file} has changed" for file, was in self._files.items() if _file_mark(file) != was)
        return self._why_unlike(order) or next(changed, None)

    def _why_unlike(self, order: PreloadOrder) -> str | None:
        """Why the preloader cannot serve another order, of any run; None if it can."""
        own = self.order
        if own.argv != order.argv:
            return "the interpreter or its options have changed"
        if own.cwd != order.cwd:
            return f"the directory was {own.cwd}"
        if own.modules != order.modules:
            return f"the modules to preload were {', '.join(own.modules)}"
        if (name := _first_differing(own.script_env, order.script_env)) is not None:
            return f"the script sets {name} in another way before its imports"
        env = {**os.environ, **order.env}
        name = _first_differing(self._env, env, lambda name: _is_of_one_terminal(name, self._seen))
        return None if name is None else f"the variable {name} has changed"

    def fork(self, start: TaskStart) -> ForkRequest:
        """Request a task. OSError if its log cannot be opened, BlockingIOError with too many open requests."""
        env = start.environ()
        fields = {
            "argv": start.order.argv,
            "env": env,
            "ordered": self._env,
            # The first variable that the imports may have read with another value than the task's.
            "differing": _first_differing(self._env, env, lambda name: _is_of_one_task(name, self._seen)),
            "cwd": start.order.cwd,
            "agent": os.getpid(),
            "descriptors": list(start.descriptors),
        }
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        pipes = TaskPipes(start.log)
        request = ForkRequest(start, ours, pipes)
        sheet = os.memfd_create("orch-task", os.MFD_CLOEXEC)
        try:
            with open(sheet, "wb", closefd=False) as file:
                file.write(json.dumps(fields).encode())
            passed = [sheet, pipes.log, pipes.progress_in, its.fileno(), *start.descriptors.values()]
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
