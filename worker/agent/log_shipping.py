"""Sends what tasks append to their logs on this host. The files are the buffer: a slow link never blocks a task."""

from __future__ import annotations

import ctypes
import os
import select
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from worker.agent.run_logs import RunFile, open_log
from worker.wire.messages import Empty, Exited, FromAgent, Log

# Bytes of a log in one message, which base64 makes a third longer.
_CHUNK_BYTES = 48 << 10
# Messages of one turn of the agent, between two looks at the exits of tasks.
_CHUNKS_A_TURN = 4
# Limit on bytes that were sent and not read yet, so that other messages do not wait behind logs.
CREDIT_BYTES = 128 << 10
# Longest time to send the rest of the logs when all tasks have ended, without interruptions of the network.
_REST_S = 5.0
# A longer silence of the supervisor counts as an interruption after this time.
_BREAK_S = 1.0
# Interval between two looks while logs grow, and without inotify.
_INTERVAL_S, _POLL_S = 0.01, 0.05

_IN_MODIFY = 0x2
_DRAIN_BYTES = 1 << 16
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class _Log:
    """A log, open for reading. All before `sent` was sent, except `left_out` bytes. Each of `held` waits until `sent`
    has reached its offset."""

    name: str
    fd: int
    sent: int = 0
    left_out: int = 0
    held: deque[tuple[int, Exited | None]] = field(default_factory=deque)


class LogShipping:
    """Sends the logs of one run from this host."""

    def __init__(self, send: Callable[[FromAgent], None], poller: select.epoll) -> None:
        self._due = float("inf")
        self._is_blocked = False
        self._send = send
        self._poller = poller
        self._logs: dict[str, _Log] = {}
        self._last: Empty | None = None
        self._credit = CREDIT_BYTES
        self._credit_at = self._rest_s = 0.0
        self._inotify = -1
        self._must_poll = False

    @property
    def due(self) -> float:
        """The time of the next advance() (monotonic seconds)."""
        return 0.0 if self._is_blocked and self._credit > 0 else self._due

    def add(self, name: str, path: str) -> None:
        """Send this log under the name of a task, from its beginning. A log that is sent already is continued."""
        if name in self._logs:
            return
        try:
            os.close(open_log(RunFile(path)))
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return  # the start of the task fails for the same reason, and reports it
        self._logs[name] = _Log(name, fd)
        self._watch(fd)
        self._due = 0.0

    def hold(self, message: Exited) -> None:
        """Send the exit of a task after all that its log contains now."""
        log = self._logs.get(message.task)
        if log is None:
            self._send(message)
            return
        log.held.append((os.fstat(log.fd).st_size, message))
        self._due = 0.0

    def hold_last(self, message: Empty) -> None:
        """Send a message after all that the logs contain now. If that takes too long, the rest is left out, and the
        message has its length: `unsent`, {task: bytes}."""
        if self._last is None:
            self._rest_s = 0.0
        else:  # a second stop came before the first one was reported
            message = replace(
                message, swept=self._last.swept + message.swept, left=self._last.left + message.left
            )
        for log in self._logs.values():
            log.held.append((os.fstat(log.fd).st_size, None))
        self._last = message
        self._due = 0.0

    def serves(self, fd: int) -> bool:
        return fd == self._inotify

    def wake(self) -> None:
        """A log was written to. Further events are of no interest until everything was sent."""
        self._poller.modify(self._inotify, 0)
        self._due = 0.0

    def take_credit(self, count: int, now: float) -> None:
        """The supervisor has read so many bytes."""
        self._credit += count
        self._rest_s += min(now - self._credit_at, _BREAK_S)
        self._credit_at = now

    def advance(self, now: float) -> None:
        """Send what has been written and may be sent now."""
        if self._last is not None and self._rest_s >= _REST_S:
            self._leave_out_rest(self._last)
        if now < self.due:
            return
        room = _CHUNKS_A_TURN
        self._is_blocked = False
        for log in [*self._logs.values()]:
            while (more := self._size(log) > log.sent) and room and self._credit > 0:
                self._send_chunk(log)
                room -= 1
            self._is_blocked = self._is_blocked or more
            self._release(log)
        # Round robin: the log that was served first is served last the next time.
        if self._logs:
            first = next(iter(self._logs))
            self._logs[first] = self._logs.pop(first)
        if self._last is not None and not any(log.held for log in self._logs.values()):
            self._send(self._last)
            self._last = None
        self._plan(now, grew=room < _CHUNKS_A_TURN)

    def close(self) -> None:
        for log in self._logs.values():
            os.close(log.fd)
        self._logs.clear()
        if self._inotify >= 0:
            self._poller.unregister(self._inotify)
            os.close(self._inotify)
        self._inotify, self._must_poll, self._last = -1, False, None
        self._is_blocked, self._due = False, float("inf")

    # -- steps

    def _plan(self, now: float, grew: bool) -> None:
        """Decide when the logs are looked at again. Without credit, they wait for more."""
        if not self._logs or self._is_blocked:
            self._due = float("inf")
        elif grew:
            self._due = now + _INTERVAL_S
        else:
            self._await_growth(now)

    def _await_growth(self, now: float) -> None:
        self._due = now + _POLL_S if self._must_poll else float("inf")
        if self._inotify < 0:
            return
        try:
            os.read(self._inotify, _DRAIN_BYTES)
        except BlockingIOError:
            pass
        self._poller.modify(self._inotify, select.EPOLLIN)
        # A log may have grown between the last look and the end of the old events.
        if any(self._size(log) != log.sent for log in self._logs.values()):
            self._due = now

    def _size(self, log: _Log) -> int:
        """The size of a log. If its task has shortened it, that is reported."""
        size = os.fstat(log.fd).st_size
        if size < log.sent:
            log.sent = log.left_out = 0
            self._send_bytes(log, b"", is_cut=True)
        return size

    def _send_chunk(self, log: _Log) -> None:
        data = os.pread(log.fd, min(_CHUNK_BYTES, self._credit), log.sent)
        self._send_bytes(log, data)
        log.sent += len(data)
        self._credit -= len(data)

    def _send_bytes(self, log: _Log, data: bytes, is_cut: bool = False) -> None:
        self._send(Log(log.name, log.sent - log.left_out, data, is_cut))

    def _release(self, log: _Log) -> None:
        """Send the messages whose logs were sent up to their offsets."""
        while log.held and min(log.held[0][0], os.fstat(log.fd).st_size) <= log.sent:
            _, message = log.held.popleft()
            if message is not None:
                self._send(message)

    def _leave_out_rest(self, last: Empty) -> None:
        """Send `last` and all held messages now: the link is too slow for what is left of the logs."""
        unsent = {log.name: os.fstat(log.fd).st_size - log.sent for log in self._logs.values()}
        of_tasks = {name: count for name, count in unsent.items() if count > 0 and name[0] != "@"}
        self._last = replace(last, unsent=of_tasks)
        for log in self._logs.values():
            left_out = max(0, unsent[log.name])
            log.sent += left_out
            log.left_out += left_out
        self._due = 0.0

    def _watch(self, fd: int) -> None:
        if self._inotify < 0 and not self._must_poll:
            self._inotify = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._inotify >= 0:
                self._poller.register(self._inotify, 0)
        path = b"/proc/self/fd/%d" % fd
        if self._inotify < 0 or _libc.inotify_add_watch(self._inotify, path, _IN_MODIFY) < 0:
            self._must_poll = True  # the user's watches are used up
