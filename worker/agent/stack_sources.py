"""Two ways to read the stacks of a Python process: its own dump, and py-spy."""

from __future__ import annotations

import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from worker.agent import task_process
from worker.agent.run_logs import RunFile, open_in_run
from worker.agent.task_process import StartFailed, TaskProcess

# Longest text of a task's stacks. A dump prints the main thread last, py-spy prints it first.
LONGEST_BYTES = 256 * 1024
# A dump is written within milliseconds; on a busy machine the process may have to wait for a core.
_DUMP_TIMEOUT_S = 1.5
CHECK_S = 0.015
# A dump without a known last line is complete when it has not grown for this long.
_QUIET_S = 0.15
# Last lines of a dump: the outermost frame of a main thread, or the mark after a hundred threads.
_OUTERMOST = (b" in <module>\n", b" in _run_module_as_main\n")
_CUT = b"\n...\n"
_READ_BYTES = 1 << 16
# py-spy takes 0.02 to 0.1 s for Python's stacks; for native ones it reads TensorFlow's symbols first, about 10 s.
_SPY_TIMEOUT_S = 2.0
_NATIVE_SPY_TIMEOUT_S = 60.0
_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
# Yama: only ancestors of a process, and the process that it names, may trace it.
_RESTRICTED = "1"

# Yields the monotonic time at which it continues; returns (text, its place in a file), or None.
Source = Generator[float, None, tuple[str, dict[str, Any]] | None]


def own_dump(task: TaskProcess, number: int, file: RunFile, problems: list[str]) -> Source:
    """Signal the task to dump its stacks to its file, and wait for the dump."""
    try:
        # The task may have replaced its file by anything, for example by a pipe: never block.
        fd = open_in_run(file, os.O_RDWR | os.O_APPEND)
    except OSError as error:
        problems.append(f"{file.path}: {error.strerror}")
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            problems.append(f"{file.path} is not an ordinary file")
            return None
        try:
            os.write(fd, time.strftime("\n%Y-%m-%d %H:%M:%S, asked by orch:\n").encode())
        except OSError:
            pass  # the disk is full; the dump may still fit
        offset = os.fstat(fd).st_size
        try:
            signal.pidfd_send_signal(task.pidfd, number)
        except OSError:
            problems.append("it has exited")
            return None
        length = yield from _dump_length(fd, offset)
        if length == 0:
            problems.append(f"it did not answer within {_DUMP_TIMEOUT_S:g} s")
            return None
        kept = min(length, LONGEST_BYTES)
        data = os.pread(fd, kept, offset + length - kept)
    finally:
        os.close(fd)
    if data.endswith(_CUT):
        problems.append("its dump ends after 100 threads, before the main thread")
        return None
    return data.decode("utf-8", "replace"), {"file": file.path, "offset": offset, "length": length}


def _dump_length(fd: int, offset: int) -> Generator[float, None, int]:
    """Return the length of the dump from `offset` when it is complete or time is up; 0 without one."""
    began = time.monotonic()
    length, since = 0, began
    while True:
        yield time.monotonic() + CHECK_S
        now = time.monotonic()
        before, length = length, os.fstat(fd).st_size - offset
        if length != before:
            since = now
        elif length > 0 and (now - since >= _QUIET_S or _is_complete(fd, offset + length)):
            return length
        if now - began >= _DUMP_TIMEOUT_S:
            return max(0, length)


def _is_complete(fd: int, end: int) -> bool:
    tail = os.pread(fd, 256, max(0, end - 256))
    return tail.endswith((*_OUTERMOST, _CUT))


def find_py_spy() -> str | None:
    """Return the program: beside this interpreter, where the extra `stacks` installs it, or on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    if os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which("py-spy")


def is_tracing_restricted() -> bool:
    """Whether the kernel lets py-spy trace only processes that allow it (Yama)."""
    try:
        return _PTRACE_SCOPE.read_text().strip() == _RESTRICTED
    except OSError:
        return False


class PySpy:
    """A running `py-spy dump`. Its pipe is registered with `poller`; OSError or StartFailed if it cannot start.

    Once `is_done`, `text` is its output, or `problem` says why there is none."""

    def __init__(
        self, program: str, pid: int, *, native: bool, is_stopped: bool, now: float, poller: select.epoll
    ) -> None:
        self.deadline = now + (_NATIVE_SPY_TIMEOUT_S if native else _SPY_TIMEOUT_S)
        self.text = ""
        self.problem: str | None = None
        self._poller = poller
        self._data = bytearray()
        self._timed_out = False
        # A stopped process cannot be paused, and its stacks do not change.
        options = ["--native"] if native else ["--nonblocking"] if is_stopped else []
        self._out, into = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._out, False)
        try:
            argv = [program, "dump", "--pid", str(pid), *options]
            self._process: subprocess.Popen[bytes] = task_process.spawn(argv, os.environ, "/", into, (into,))
        except (OSError, StartFailed):
            os.close(self._out)
            raise
        finally:
            os.close(into)
        poller.register(self._out, select.EPOLLIN)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_done(self) -> bool:
        """True once its output and its exit status were read."""
        return self._out < 0 and self._process.returncode is not None

    def fileno(self) -> int:
        return self._out

    def read(self) -> None:
        """Read its pipe once."""
        try:
            data = os.read(self._out, _READ_BYTES)
        except BlockingIOError:
            return
        self._data += data[: max(0, LONGEST_BYTES - len(self._data))]
        if not data:
            self._close()
            self._conclude()

    def reap(self) -> None:
        """Read its exit status."""
        self._process.wait()
        self._conclude()

    def time_out(self) -> None:
        """Kill it after its deadline. Its exit is read later, like any other."""
        self._timed_out = True
        self._process.kill()

    def kill(self) -> None:
        """Kill it and wait for its exit."""
        self._process.kill()
        self._process.wait()
        if self._out >= 0:
            self._close()
        self._conclude()

    def _close(self) -> None:
        self._poller.unregister(self._out)
        os.close(self._out)
        self._out = -1

    def _conclude(self) -> None:
        if not self.is_done:
            return
        text = self._data.decode("utf-8", "replace")
        if self._process.returncode == 0 and text.strip():
            self.text = text
        else:
            self.problem = self._explain(text)

    def _explain(self, text: str) -> str:
        """Return the reason for missing output, from the exit status and the error text."""
        if self._timed_out:
            return "py-spy took too long"
        if "ermission denied" in text.lower() or "operation not permitted" in text.lower():
            return (
                "py-spy must not read it: the kernel does not permit ptrace here (sysctl"
                " kernel.yama.ptrace_scope=0, or in a container --cap-add SYS_PTRACE, allows it)"
            )
        if self._process.returncode == -signal.SIGKILL:
            return "py-spy was killed"
        lines = text.strip().splitlines()
        first = next((line for line in lines if line.startswith("Error")), f"exit {self._process.returncode}")
        return f"py-spy: {first.strip()[:200]}"
