"""The running tasks: their processes, signals and exits, and the state of the others when one fails."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from worker.agent.processes import all_processes, read_stat, tree_states
from worker.agent.resource_failures import OomMark
from worker.agent.task_start import DESCRIPTORS_VARIABLE, PROGRESS_VARIABLE, TaskPipes, TaskStart, spawn
from worker.bootstrap.terminal import TERMINAL, open_again
from worker.wire.facts import StartMethod
from worker.wire.messages import TaskOrder

_MOST_EXITS_AT_ONCE = 1024


@dataclass
class TaskProcess:
    """A started task: the pid of its leader (also its process group and session), a pidfd, and its progress pipe."""

    start: TaskStart
    pid: int
    pidfd: int
    start_ticks: int
    progress_fd: int
    started_mono: float
    progress_rest: bytes = b""
    is_ready: bool = False
    method: StartMethod = "spawn"
    was_asked_to_stop: bool = False
    was_signalled: bool = False
    peak_bytes: int | None = None
    over_limit: tuple[int, int] | None = None
    stacks_signal: int | None = None
    oom_mark: OomMark = field(default_factory=OomMark.now)

    @property
    def order(self) -> TaskOrder:
        return self.start.order

    @property
    def name(self) -> str:
        return self.order.task

    def signal_group(self, number: int) -> None:
        """Signal the whole group. The pid cannot have been reused as long as the leader is not reaped."""
        self.was_asked_to_stop = self.was_asked_to_stop or number == signal.SIGTERM
        self.was_signalled = True
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return

    def check_memory(self, used_bytes: int) -> None:
        """Kill the task once it uses more memory than its limit."""
        limit = self.order.memory_limit
        if limit is not None and used_bytes > limit and self.over_limit is None:
            self.over_limit = used_bytes, limit
            self.signal_group(signal.SIGKILL)

    def repeat_sigterm(self) -> None:
        """Send SIGTERM to the leader again if it was sent one: the task reports that it may have lost it."""
        if self.was_asked_to_stop:
            try:
                signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)
            except OSError:
                return

    def stopped_by(self) -> int | None:
        """Return the signal that has stopped the leader, such as SIGSTOP; None if it runs."""
        try:
            # WNOWAIT: ask again and again, and leave the exit to reap().
            info = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        return None if info is None or info.si_code != os.CLD_STOPPED else info.si_status

    def reap(self) -> tuple[int | None, int | None] | None:
        """Return (exit code, signal) of the leader, one of them None; None if it has not exited."""
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if pid == 0:
            return None
        self.peak_bytes = usage.ru_maxrss * 1024
        code = os.waitstatus_to_exitcode(status)
        return (code, None) if code >= 0 else (None, -code)


def start(task: TaskStart) -> TaskProcess:
    """Start the task as a new process. Raises StartFailed without the command, the directory or the permission."""
    pipes = TaskPipes(task.log)
    try:
        others = dict(task.descriptors)
        held = others.pop(TERMINAL, None)
        terminal = None if held is None else open_again(held)
        env = {**task.environ(), PROGRESS_VARIABLE: str(pipes.progress_in)}
        if others:
            env[DESCRIPTORS_VARIABLE] = json.dumps(others)
        try:
            passed = (pipes.progress_in, *others.values())
            process = spawn(task.order.argv, env, task.order.cwd, pipes.log, passed, terminal)
        finally:
            if terminal is not None:
                os.close(terminal)
        # The agent reaps by pid; Popen must neither wait nor warn.
        process.returncode = 0
        return adopted(task, process.pid, os.pidfd_open(process.pid), pipes, "spawn")
    finally:
        pipes.close()


def adopted(task: TaskStart, pid: int, pidfd: int, pipes: TaskPipes, method: StartMethod) -> TaskProcess:
    """Return the task that runs in `pid`, a child of this process that has not been reaped."""
    stat = read_stat(pid)
    return TaskProcess(
        start=task,
        pid=pid,
        pidfd=pidfd,
        start_ticks=stat.start_ticks if stat else 0,
        progress_fd=pipes.keep_output(),
        started_mono=time.monotonic(),
        method=method,
        is_ready=not task.order.serves,
    )


class LiveTasks:
    """The running tasks in the order of their starts. `poller` wakes for their exits."""

    def __init__(self, poller: select.epoll) -> None:
        # Exits have their own epoll, so that they can be read before other ready descriptors.
        self._exits = select.epoll()
        poller.register(self._exits, select.EPOLLIN)
        self._by_name: dict[str, TaskProcess] = {}
        self._by_pidfd: dict[int, TaskProcess] = {}
        self._started: set[str] = set()
        self._has_failed = False

    def __iter__(self) -> Iterator[TaskProcess]:
        return iter([*self._by_name.values()])

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def by_name(self) -> Mapping[str, TaskProcess]:
        return self._by_name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def exited(self) -> list[TaskProcess]:
        """Return the tasks that have exited and were not removed yet. Never waits."""
        # epoll returns descriptors in the order in which they became ready: this is the true order of exits.
        return [self._by_pidfd[fd] for fd, _ in self._exits.poll(0, _MOST_EXITS_AT_ONCE)]

    def begin_attempt(self) -> None:
        """Forget which tasks have started and failed in the previous attempt."""
        self._started.clear()
        self._has_failed = False

    def add(self, task: TaskProcess) -> None:
        if task.name in self._started:
            self._has_failed = False  # the task was restarted: the next failure is a first one again
        self._started.add(task.name)
        self._by_name[task.name] = task
        self._by_pidfd[task.pidfd] = task
        self._exits.register(task.pidfd, select.EPOLLIN)

    def remove(self, task: TaskProcess) -> None:
        """Forget an exited task and close its pidfd."""
        self._exits.unregister(task.pidfd)
        del self._by_pidfd[task.pidfd], self._by_name[task.name]
        os.close(task.pidfd)

    def peer_states(self, failed: TaskProcess) -> dict[str, str]:
        """Return {task: state letter (man 5 proc)} of the other tasks at the first failure since the
        attempt began or a task was restarted; else {}. Reading them for each of hundreds of failures takes too long."""
        if self._has_failed:
            return {}
        self._has_failed = True
        peers = [peer for peer in self if peer is not failed and not peer.order.is_helper]
        states = tree_states((peer.pid for peer in peers), all_processes())
        return {peer.name: states[peer.pid] for peer in peers}
