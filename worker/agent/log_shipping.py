"""Sends what tasks append to their logs on this host. The files are the buffer: a slow link never blocks a task."""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from worker.agent.run_logs import RunFile, open_log
from worker.wire.growth import GrowthWatch
from worker.wire.messages import Empty, Exited, FromAgent, Log

# Bytes of a log in one message, which base64 makes a third longer.
_CHUNK_BYTES = 48 << 10
# Messages of one turn of the agent, between two looks at the exits of tasks.
_CHUNKS_A_TURN = 4
# Limits on bytes that were sent and not confirmed. The supervisor confirms each KiB.
_LEAST_BYTES, _FIRST_BYTES, MOST_BYTES = 2 << 10, 8 << 10, 128 << 10
# The limit grows while bytes arrive sooner, and shrinks when they take longer (seconds). A ping waits as long, and
# without an answer for 3 s a host is shown as silent.
_SHORT_S, _LONG_S = 0.75, 2.0
# Longest time to send the rest of the logs when all tasks have ended, without interruptions of the network.
_REST_S = 5.0
# A longer silence of the supervisor counts as an interruption after this time.
_BREAK_S = 1.0
# Interval between two looks while logs grow, and without inotify.
_INTERVAL_S, _POLL_S = 0.01, 0.05


class Window:
    """Limits the bytes that were sent and not confirmed to those that the link carries in a second or two, so that
    other messages wait no longer."""

    def __init__(self) -> None:
        self._size = _FIRST_BYTES
        self._open = 0
        self._sent: deque[tuple[int, float]] = deque()

    @property
    def room(self) -> int:
        """The number of bytes that may be sent now."""
        return self._size - self._open

    def send(self, count: int, now: float) -> None:
        """Record that `count` bytes were sent."""
        self._open += count
        self._sent.append((count, now))

    def confirm(self, count: int, now: float) -> None:
        """Record that the supervisor has confirmed `count` more bytes, and adapt the limit."""
        self._open -= count
        delay_s = 0.0
        rest = count
        while self._sent and rest >= self._sent[0][0]:
            sent, at = self._sent.popleft()
            rest, delay_s = rest - sent, now - at
        if self._sent:
            self._sent[0] = self._sent[0][0] - rest, self._sent[0][1]
        if delay_s > _LONG_S:
            self._size = max(_LEAST_BYTES, int(self._size * _SHORT_S / delay_s))
        elif 0.0 < delay_s < _SHORT_S:
            self._size = min(MOST_BYTES, self._size + count)


@dataclass
class _Log:
    """A log, open for reading. All before `sent` was sent, except `left_out` bytes. Each of `held` waits until `sent`
    has reached its offset."""

    name: str
    fd: int
    sent: int = 0
    left_out: int = 0
    held: deque[tuple[int, Exited | None]] = field(default_factory=deque)

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def hold(self, message: Exited | None) -> None:
        self.held.append((self.size, message))


class LogShipping:
    """Sends the logs of one run from this host. `due` is the time of the next advance() (monotonic seconds)."""

    def __init__(self, send: Callable[[FromAgent], None], poller: select.epoll) -> None:
        self._send = send
        self._poller = poller
        self._logs: dict[str, _Log] = {}
        self._last: Empty | None = None
        self._window = Window()
        self._confirmed_at = self._rest_s = 0.0
        self._due = float("inf")
        self._is_blocked = False
        self._watch: GrowthWatch | None = None
        self._must_poll = False

    @property
    def due(self) -> float:
        return 0.0 if self._is_blocked and self._window.room > 0 else self._due

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
        self._due = 0.0
        try:
            if self._watch is None and not self._must_poll:
                self._watch = GrowthWatch()
                self._poller.register(self._watch, select.EPOLLIN)
            if self._watch is not None:
                self._watch.add(fd)
        except OSError:
            self._must_poll = True

    def hold(self, message: Exited) -> None:
        """Send the exit of a task after all that its log contains now."""
        log = self._logs.get(message.task)
        if log is None:
            self._send(message)
        else:
            log.hold(message)
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
            log.hold(None)
        self._last = message
        self._due = 0.0

    def serves(self, fd: int) -> bool:
        return self._watch is not None and fd == self._watch.fileno()

    def wake(self) -> None:
        """A log was written to."""
        self._due = 0.0

    def confirm(self, count: int, now: float) -> None:
        """The supervisor has read so many bytes."""
        self._window.confirm(count, now)
        self._rest_s += min(now - self._confirmed_at, _BREAK_S)
        self._confirmed_at = now

    def advance(self, now: float) -> None:
        """Send what has been written and may be sent now."""
        if self._last is not None and self._rest_s >= _REST_S:
            self._leave_out_rest(self._last)
        if now < self.due:
            return
        if self._watch is not None:  # until everything was sent
            self._watch.mute()
        chunks = _CHUNKS_A_TURN
        self._is_blocked = False
        for log in self._logs.values():
            while (more := self._has_more(log)) and chunks and self._window.room > 0:
                self._send_chunk(log, now)
                chunks -= 1
            self._is_blocked = self._is_blocked or more
            self._release(log)
        # Round robin: the log that was served first is served last the next time.
        if self._logs:
            first = next(iter(self._logs))
            self._logs[first] = self._logs.pop(first)
        if self._last is not None and not any(log.held for log in self._logs.values()):
            self._send(self._last)
            self._last = None
        self._plan(now, grew=chunks < _CHUNKS_A_TURN)

    def close(self) -> None:
        for log in self._logs.values():
            os.close(log.fd)
        self._logs.clear()
        if self._watch is not None:
            self._poller.unregister(self._watch)
            self._watch.close()
        self._watch = self._last = None
        self._is_blocked, self._due = False, float("inf")

    # -- steps

    def _plan(self, now: float, grew: bool) -> None:
        """Decide when the logs are looked at again. While the window is full, they wait for the supervisor."""
        if not self._logs or self._is_blocked:
            self._due = float("inf")
        elif grew:
            self._due = now + _INTERVAL_S
        else:
            self._due = now + _POLL_S if self._must_poll else float("inf")
            if self._watch is not None:
                self._watch.rearm()

    def _has_more(self, log: _Log) -> bool:
        """Whether a log has grown. If its task has shortened it, that is reported."""
        size = log.size
        if size < log.sent:
            log.sent = log.left_out = 0
            self._send_bytes(log, b"", is_cut=True)
        return size > log.sent

    def _send_chunk(self, log: _Log, now: float) -> None:
        data = os.pread(log.fd, min(_CHUNK_BYTES, self._window.room), log.sent)
        self._send_bytes(log, data)
        log.sent += len(data)
        self._window.send(len(data), now)

    def _send_bytes(self, log: _Log, data: bytes, is_cut: bool = False) -> None:
        self._send(Log(log.name, log.sent - log.left_out, data, is_cut))

    def _release(self, log: _Log) -> None:
        """Send the messages whose logs were sent up to their offsets."""
        while log.held and min(log.held[0][0], log.size) <= log.sent:
            _, message = log.held.popleft()
            if message is not None:
                self._send(message)

    def _leave_out_rest(self, last: Empty) -> None:
        """Send `last` and all held messages now: the link is too slow for what is left of the logs."""
        unsent = {log.name: max(0, log.size - log.sent) for log in self._logs.values()}
        of_tasks = {name: count for name, count in unsent.items() if count and name[0] != "@"}
        self._last = replace(last, unsent=of_tasks)
        for log in self._logs.values():
            log.sent += unsent[log.name]
            log.left_out += unsent[log.name]
        self._due = 0.0
