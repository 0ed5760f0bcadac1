"""Copies between stdin and stdout of a connection and the agent's socket, until one of them ends."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

# In the directory of a session: the agent's pid.
PID = "agent.pid"
_STDIN, _STDOUT, _STDERR = 0, 1, 2
_READ_BYTES = 1 << 16
# Limit on bytes that are read ahead, so that the agent notices a slow connection.
_MOST_WAITING_BYTES = 1 << 17
# The end of the agent's log that is printed if the agent ends by itself.
_LOG_END_BYTES = 2048
# Longest time for the keeper to clear up, and the interval of looks at it. A connection that takes nothing for as long
# is dead.
_REMOVAL_S, _CHECK_S = 6.0, 0.005
# An agent that is exiting closes its listening socket this soon after its connections.
_EXITING_S = 1.0


class _Direction:
    """Copies from `source` to `sink`. Keeps the bytes that the sink has not taken yet."""

    def __init__(self, source: int, sink: int) -> None:
        self.source = source
        self.sink = sink
        self.waiting = bytearray()
        self.is_open = True

    @property
    def reads(self) -> bool:
        return self.is_open and len(self.waiting) < _MOST_WAITING_BYTES

    def read(self) -> None:
        try:
            data = os.read(self.source, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.waiting += data
        self.is_open = bool(data)

    def write(self) -> bool:
        """Write what the sink takes; False if it is closed."""
        try:
            while self.waiting:
                del self.waiting[: os.write(self.sink, self.waiting)]
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


def relay(agent: socket.socket, log: str) -> None:
    """Copy until an end; what the agent has sent before its end is still written. `log`: the agent's.

    In a step of Slurm it stays until the agent has ended and its keeper has cleared up: the end of the step's program
    kills all others of the step.
    """
    place = Path(log).parent
    is_step = "SLURM_STEP_ID" in os.environ
    was_told = False

    def pass_notice_on(*_: object) -> None:
        nonlocal was_told
        was_told = True
        _pass_on(place, signal.SIGTERM)

    if is_step:
        # Slurm tells this program alone that the step will end. The agent passes it on to the supervisor.
        signal.signal(signal.SIGTERM, pass_notice_on)
    lock = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    _relay(agent, log)
    agent.close()
    if is_step:
        # The supervisor is out of reach, and a job that ends starts no other step: the agent leaves at once.
        signal.signal(signal.SIGTERM, lambda *_: _pass_on(place, signal.SIGHUP))
        if was_told:
            _pass_on(place, signal.SIGHUP)
        fcntl.flock(lock, fcntl.LOCK_SH)  # the agent and its keeper hold it


def _pass_on(place: Path, number: signal.Signals) -> None:
    with suppress(OSError, ValueError):
        os.kill(int((place / PID).read_text()), number)


def _relay(agent: socket.socket, log: str) -> None:
    try:
        log_fd = os.open(log, os.O_RDONLY | os.O_CLOEXEC)  # its directory is removed when the agent ends
    except OSError:
        log_fd = -1
    to_agent, from_agent = _Direction(_STDIN, agent.fileno()), _Direction(agent.fileno(), _STDOUT)
    for fd in (_STDIN, _STDOUT, agent.fileno()):
        os.set_blocking(fd, False)
    _copy(to_agent, from_agent)
    if not from_agent.is_open:
        _write_rest(from_agent)
        _report_end(log_fd)
        _await_removal(Path(log).parent)


def _copy(to_agent: _Direction, from_agent: _Direction) -> None:
    while to_agent.is_open and from_agent.is_open:
        events: dict[int, int] = {}
        for direction in (to_agent, from_agent):
            if direction.reads:
                events[direction.source] = events.get(direction.source, 0) | select.POLLIN
            if direction.waiting:
                events[direction.sink] = events.get(direction.sink, 0) | select.POLLOUT
        poller = select.poll()
        for fd, wanted in events.items():
            poller.register(fd, wanted)
        ready = dict(poller.poll())
        for direction in (to_agent, from_agent):
            if ready.get(direction.source, 0) & ~select.POLLOUT and direction.reads:
                direction.read()
            if direction.waiting and not direction.write():
                return


def _write_rest(from_agent: _Direction) -> None:
    """Write what the agent sent before its end. Give up if the connection takes nothing: its other end is gone."""
    poller = select.poll()
    poller.register(from_agent.sink, select.POLLOUT)
    while from_agent.write() and from_agent.waiting and poller.poll(_REMOVAL_S * 1000):
        pass


def _await_removal(directory: Path) -> None:
    """Wait until the keeper has cleared up after the agent. Return at once if only this connection has ended."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(directory / "agent.sock"))
            if not _is_closed(probe):
                return
        except OSError:
            pass
    deadline = time.monotonic() + _REMOVAL_S
    while directory.exists() and time.monotonic() < deadline:
        time.sleep(_CHECK_S)


def _is_closed(probe: socket.socket) -> bool:
    """Whether the agent closes a connection that it has not begun: it is exiting."""
    probe.settimeout(_EXITING_S)
    try:
        return not probe.recv(1)
    except TimeoutError:
        return False


def _report_end(log_fd: int) -> None:
    """Print the end of the agent's log, which is empty unless something went wrong."""
    if log_fd < 0:
        return
    size = os.fstat(log_fd).st_size
    os.write(_STDERR, os.pread(log_fd, _LOG_END_BYTES, max(0, size - _LOG_END_BYTES)))
