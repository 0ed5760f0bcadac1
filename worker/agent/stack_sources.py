"""Reads the stacks of tasks: from their own dump on a signal, else by py-spy, else what /proc shows.

Runs in a helper of the agent, with a thread for each task, because reading a file or py-spy may block.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Semaphore
from typing import Any

from worker.agent.processes import STOPPED, ProcessStat, all_processes, descendants, tree_states
from worker.agent.run_logs import open_in_run
from worker.agent.tasks import TaskProcess
from worker.wire.codec import encode
from worker.wire.facts import StacksSource
from worker.wire.messages import Stacked

# Longest text of a task's stacks. A dump prints the main thread last, py-spy prints it first.
LONGEST_BYTES = 256 * 1024
_MOST_THREADS = 256
# A dump is written within milliseconds; on a busy machine the process may have to wait for a core.
_DUMP_TIMEOUT_S = 1.5
_CHECK_S = 0.015
# A dump without a known last line is complete when it has not grown for this long.
_QUIET_S = 0.15
# Last lines of a dump: the outermost frame of a main thread, or the mark after a hundred threads.
_OUTERMOST = (b" in <module>\n", b" in _run_module_as_main\n")
_CUT = b"\n...\n"
# py-spy takes 0.02 to 0.1 s for Python's stacks; for native ones it reads TensorFlow's symbols first, about 10 s.
_SPY_TIMEOUT_S, _NATIVE_SPY_TIMEOUT_S = 2.0, 60.0
# Number of py-spy processes at a time. For native frames one reads whole libraries while its task is paused.
_SPIES_AT_ONCE, _NATIVE_SPIES_AT_ONCE = 2, 1
_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
# Yama: only ancestors of a process, and the process that it names with those below, may trace it.
_RESTRICTED = "1"

# A text, and its place in a file as fields of Stacked.
_Found = tuple[str, dict[str, Any]]


class _NoStacks(Exception):
    """Why this source has no stacks of the task."""


def take_all(tasks: Collection[TaskProcess], native: bool, may_spy: bool, sink: socket.socket) -> None:
    """Write the answer of each task as a line when it is known. The descriptors of the tasks must be open here."""
    from concurrent.futures import ThreadPoolExecutor

    processes = all_processes()
    states = tree_states((task.pid for task in tasks), processes)
    spies = Semaphore(_NATIVE_SPIES_AT_ONCE if native else _SPIES_AT_ONCE) if may_spy else None
    writing = Lock()

    def take(task: TaskProcess) -> None:
        target = _python_process(task.pid, processes)
        line = encode(_Question(task, native, states[task.pid], target, spies).answer())
        with writing:
            sink.sendall(line)

    with ThreadPoolExecutor(_MOST_THREADS) as threads:
        list(threads.map(take, tasks))  # raises what a thread has raised


@dataclass(frozen=True)
class _Question:
    """Asks for the stacks of one task. `target`: the process that py-spy reads. `spies`: None if py-spy may not run."""

    task: TaskProcess
    native: bool
    state: str
    target: int | None
    spies: Semaphore | None

    @property
    def _is_stopped(self) -> bool:
        return self.state in STOPPED

    def answer(self) -> Stacked:
        sources: list[tuple[StacksSource, Callable[[], _Found]]] = [
            ("signal", self._own_dump),
            ("py-spy", self._by_spy),
        ]
        problems = []
        if self._is_stopped:
            del sources[0]
            problems += ["native frames cannot be read of a stopped process"] if self.native else []
        elif self.native:
            sources.reverse()
        for how, source in sources:
            try:
                return self._stacked(how, problems, *source())
            except _NoStacks as reason:
                problems.append(str(reason))
            except Exception as error:  # for example a file on a failing disk
                traceback.print_exc()
                problems.append(f"{how}: {error}")
        stopped = "it is stopped and answers no signal" if self._is_stopped else ""
        return self._stacked("none", [stopped, *problems, _kernel_view(self.task.pid)], "", {})

    def _stacked(self, how: StacksSource, notes: list[str], text: str, where: Mapping[str, Any]) -> Stacked:
        note = "; ".join(filter(None, notes)) or None
        return Stacked(self.task.name, self.native, how, self.state, text, note, **where)

    def _own_dump(self) -> _Found:
        """Signal the task to dump its stacks to its file, and wait for the dump."""
        number, file = self.task.stacks_signal, self.task.start.stacks_file
        if file is None:
            raise _NoStacks("it runs without orch's bootstrap")
        if number is None:
            raise _NoStacks("it does not handle the signal that asks for stacks")
        try:
            # The task may have replaced its file by anything, for example by a pipe: never block.
            fd = open_in_run(file, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise _NoStacks(f"{file.path}: {error.strerror}") from None
        with os.fdopen(fd):
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise _NoStacks(f"{file.path} is not an ordinary file")
            with suppress(OSError):  # no locks in this file system
                # Two dumps at a time would mix: another helper may have asked the same task.
                fcntl.flock(fd, fcntl.LOCK_EX)
            with suppress(OSError):  # the disk is full; the dump may still fit
                os.write(fd, time.strftime("\n%Y-%m-%d %H:%M:%S, asked by orch:\n").encode())
            offset = os.fstat(fd).st_size
            try:
                signal.pidfd_send_signal(self.task.pidfd, number)
            except OSError:
                raise _NoStacks("it has exited") from None
            length = _dump_length(fd, offset)
            kept = min(length, LONGEST_BYTES)
            data = os.pread(fd, kept, offset + length - kept)
        if not data:
            raise _NoStacks(f"it did not answer within {_DUMP_TIMEOUT_S:g} s")
        if data.endswith(_CUT):
            raise _NoStacks("its dump ends after 100 threads, before the main thread")
        return data.decode("utf-8", "replace"), {"file": file.path, "offset": offset, "length": length}

    def _by_spy(self) -> _Found:
        program = find_py_spy()
        if self.target is None:
            raise _NoStacks("it is not a Python program")
        if program is None:
            raise _NoStacks('pip install "tf-orch[stacks]" installs py-spy, which needs no answer')
        if self.spies is None:
            raise _NoStacks("the run is being torn down")
        native = self.native and not self._is_stopped
        # A stopped process cannot be paused, and its stacks do not change.
        options = ["--native"] if native else ["--nonblocking"] if self._is_stopped else []
        with self.spies:
            return _spy([program, "dump", "--pid", str(self.target), *options], native), {}


def _dump_length(fd: int, offset: int) -> int:
    """Return the length of the dump from `offset` when it is complete or time is up; 0 without one."""
    began = time.monotonic()
    length, since = 0, began
    while True:
        time.sleep(_CHECK_S)
        now = time.monotonic()
        before, length = length, max(0, os.fstat(fd).st_size - offset)
        if length != before:
            since = now
        elif length > 0 and (now - since >= _QUIET_S or _is_complete(fd, offset + length)):
            return length
        if now - began >= _DUMP_TIMEOUT_S:
            return length


def _is_complete(fd: int, end: int) -> bool:
    return os.pread(fd, 256, max(0, end - 256)).endswith((*_OUTERMOST, _CUT))


def _spy(argv: list[str], native: bool) -> str:
    try:
        # The whole output is read before it is cut: some megabytes at most.
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            timeout=_NATIVE_SPY_TIMEOUT_S if native else _SPY_TIMEOUT_S,
        )
    except OSError as error:
        raise _NoStacks(f"py-spy could not be started: {error}") from None
    except subprocess.TimeoutExpired:
        raise _NoStacks("py-spy took too long") from None
    text = done.stdout[:LONGEST_BYTES].decode("utf-8", "replace")
    if done.returncode == 0 and text.strip():
        return text
    if "ermission denied" in text.lower() or "operation not permitted" in text.lower():
        raise _NoStacks(
            "py-spy must not read it: the kernel does not permit ptrace here (sysctl"
            " kernel.yama.ptrace_scope=0, or in a container --cap-add SYS_PTRACE, allows it)"
        )
    if done.returncode == -signal.SIGKILL:
        raise _NoStacks("py-spy was killed")
    lines = text.strip().splitlines()
    first = next((line for line in lines if line.startswith("Error")), f"exit {done.returncode}")
    raise _NoStacks(f"py-spy: {first.strip()[:200]}")


def find_py_spy() -> str | None:
    """Return the program: beside this interpreter, where the extra `stacks` installs it, or on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def allow_tracing(bootstrap: Mapping[str, object] | None) -> Mapping[str, object] | None:
    """Return the bootstrap's options; under Yama the task itself must allow helpers of this agent to trace it."""
    try:
        is_restricted = _PTRACE_SCOPE.read_text().strip() == _RESTRICTED
    except OSError:
        is_restricted = False
    if bootstrap is None or not is_restricted or find_py_spy() is None:
        return bootstrap
    return {**bootstrap, "tracer": os.getpid()}


def _python_process(leader: int, processes: dict[int, ProcessStat]) -> int | None:
    """Return the leader, or the first Python process below it, as in a command that runs in a shell."""
    below = [found.pid for found in descendants(leader, processes)]
    return next((pid for pid in (leader, *below) if _is_python(pid)), None)


def _is_python(pid: int) -> bool:
    try:
        return "python" in Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return False


def _kernel_view(pid: int) -> str:
    """Return what /proc shows: `waits in the kernel in futex_wait_queue, 14 threads`."""
    parts = []
    with suppress(OSError):
        place = Path(f"/proc/{pid}/wchan").read_text().strip()
        if place not in ("", "0"):
            parts.append(f"waits in the kernel in {place}")
        threads = len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208 (only how many)
        parts.append("1 thread" if threads == 1 else f"{threads} threads")
    return ", ".join(parts)
