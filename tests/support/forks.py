"""Forks Python programs from a process that has imported their modules, so that none has to import them again."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, NoReturn

from worker.bootstrap.forked_task import show_in_proc

ROOT = Path(__file__).resolve().parents[2]
_REQUEST_BYTES = 1 << 20
_STATUS = struct.Struct("i")


class ForkedProcess:
    """A process of the fork server, used like a `subprocess.Popen`."""

    def __init__(self, status: int) -> None:
        self._status = os.fdopen(status, "rb", buffering=0)
        (self.pid,) = _STATUS.unpack(self._status.read(_STATUS.size) or b"")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            return self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal; subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("forked process", timeout or 0)
            (status,) = _STATUS.unpack(self._status.read(_STATUS.size) or b"")
            self.returncode = os.waitstatus_to_exitcode(status)
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """A process with imported modules, in which nothing runs. It ends when this object is closed."""

    # The number of processes that all servers have started.
    started = 0
    # The servers. They outlive tests, which may leave no other process.
    pids: ClassVar[set[int]] = set()

    def __init__(self, *modules: str) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(other.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "PYTHONUNBUFFERED": "1",
                    "TF_CPP_MIN_LOG_LEVEL": "2",
                },
                pass_fds=[other.fileno()],
            )
        ForkServer.pids.add(self._process.pid)

    def fork(
        self,
        words: Sequence[str],
        out: IO[bytes],
        err: IO[bytes],
        env: Mapping[str, str],
        cwd: Path,
        **passed: int,
    ) -> ForkedProcess:
        """Run `python WORDS`. If `out` is a terminal, it becomes the one that the program controls.

        `passed`: a descriptor as `supervisor` is a connection to the kept supervisor, for `orch up`. The number of one
        as `door` becomes the last word.
        """
        ForkServer.started += 1
        reader, writer = os.pipe()
        request = {"words": list(words), "env": dict(env), "cwd": str(cwd), "passed": list(passed)}
        descriptors = [writer, out.fileno(), err.fileno(), *passed.values()]
        socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
        os.close(writer)
        return ForkedProcess(reader)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()
        ForkServer.pids.discard(self._process.pid)


def _serve(requests: socket.socket) -> None:
    """Fork for each request, up to the end of the requests."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 4)
        if not text:
            return
        if os.fork() == 0:
            requests.close()
            _watch(json.loads(text), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        while _reap():
            pass


def _reap() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _watch(request: dict[str, Any], status: int, out: int, err: int, *more: int) -> None:
    """Fork the program and report its pid, then its exit status."""
    pid = os.fork()
    if pid == 0:
        os.close(status)
        passed = dict(zip(request["passed"], more, strict=True))
        _run(request["words"], request["env"], request["cwd"], out, err, passed)
    os.setsid()
    for each in (out, err, *more):
        os.close(each)
    with contextlib.suppress(BrokenPipeError):  # the reader has left
        os.write(status, _STATUS.pack(pid))
        os.write(status, _STATUS.pack(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _run(
    words: list[str], env: dict[str, str], cwd: str, out: int, err: int, passed: Mapping[str, int]
) -> NoReturn:
    """Run the program as `python` would, up to the exit of the process."""
    os.setsid()
    if os.isatty(out) and "door" not in passed:
        fcntl.ioctl(out, termios.TIOCSCTTY, 0)
        os.dup2(out, 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    show_in_proc([sys.executable, *words], env)
    if "door" in passed:
        words = [*words, str(passed["door"])]
    if "supervisor" in passed:
        from orchestrator.cli import early
        from orchestrator.links.supervisor_link import SupervisorLink

        early.use_supervisor(SupervisorLink(socket.socket(fileno=passed["supervisor"])))
    match words:
        case ["-P", "-m", module, *arguments]:
            sys.argv = [module, *arguments]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", code, *arguments]:
            sys.argv = ["-c", *arguments]
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        case [script, *arguments]:
            sys.argv = [script, *arguments]
            sys.path.insert(0, str(Path(script).parent))
            runpy.run_path(script, run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    for _module in sys.argv[2:]:
        importlib.import_module(_module)
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
