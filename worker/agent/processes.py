"""Processes as /proc shows them: their parents, state, CPU, memory and sockets."""

from __future__ import annotations

import os
import pwd
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from worker.wire.facts import LeftProcess

# Marks everything that is started on another host, so that it can be found when its agent is gone.
DIRECTORY_VARIABLE = "ORCH_HOST_DIR"
ZOMBIE, DEAD = "Z", "X"
STOPPED = frozenset("Tt")  # by a signal, by a tracer
_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Upper bound of the size of /proc/PID/stat: 52 numbers and a name.
_STAT_BYTES = 4096
# A longer command line is cut in messages.
_MOST_LETTERS = 200


@dataclass(frozen=True)
class ProcessStat:
    """/proc/PID/stat. `start_ticks` (since boot) together with the pid identifies a process; `cpu_s` is user plus
    system time in seconds; `rss_bytes` is resident memory, with shared pages counted in full."""

    pid: int
    state: str
    parent: int
    cpu_s: float
    start_ticks: int
    rss_bytes: int = 0

    @property
    def is_gone(self) -> bool:
        """True for a zombie too: it is only an exit status that was not read yet."""
        return self.state in (ZOMBIE, DEAD)


def read_stat(pid: int) -> ProcessStat | None:
    """Return None if the process is gone, or if /proc hides other users' processes (hidepid)."""
    # Reading all processes delays the report of an exit; Path and buffered files would double the time.
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    try:
        data = os.read(fd, _STAT_BYTES)
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
    # The command name is in parentheses and may contain any byte, also ')' and spaces.
    fields = data[data.rindex(b")") + 2 :].split()
    return ProcessStat(
        pid=pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        start_ticks=int(fields[19]),
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
    )


def all_processes() -> dict[int, ProcessStat]:
    stats = (read_stat(int(name)) for name in os.listdir(_PROC) if name.isdigit())  # noqa: PTH208 (ten times quicker than Path.iterdir)
    return {stat.pid: stat for stat in stats if stat is not None}


def descendants(root: int, processes: dict[int, ProcessStat]) -> list[ProcessStat]:
    """Return the processes below `root`, without it and without those that are gone, parents before children."""
    return _below(root, _children(processes))


def tree_states(roots: Iterable[int], processes: dict[int, ProcessStat]) -> dict[int, str]:
    """Return the state letter of each of `roots`, or of a stopped process below it; "X" if it is gone.

    The work of a command that runs in a shell is done below the shell, which only waits.
    """
    children = _children(processes)
    states = {}
    for root in roots:
        own = processes[root].state if root in processes else DEAD
        below = (stat.state for stat in _below(root, children))
        states[root] = next((state for state in (own, *below) if state in STOPPED), own)
    return states


def _children(processes: dict[int, ProcessStat]) -> dict[int, list[ProcessStat]]:
    children: dict[int, list[ProcessStat]] = {}
    for stat in processes.values():
        children.setdefault(stat.parent, []).append(stat)
    return children


def _below(root: int, children: dict[int, list[ProcessStat]]) -> list[ProcessStat]:
    found: list[ProcessStat] = []
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            waiting.append(child.pid)
            if not child.is_gone:
                found.append(child)
    return found


class Delivery(Enum):
    """The result of a signal: it was sent, the process is gone, or it runs under another user."""

    SENT = "sent"
    GONE = "gone"
    REFUSED = "refused"


def send_signal(stat: ProcessStat, number: int) -> Delivery:
    """Signal the process that `stat` was read from, never another one with the same pid."""
    try:
        fd = os.pidfd_open(stat.pid)
    except ProcessLookupError:
        return Delivery.GONE
    try:
        now = read_stat(stat.pid)
        if now is None or now.start_ticks != stat.start_ticks or now.is_gone:
            return Delivery.GONE
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return Delivery.GONE
    except PermissionError:
        return Delivery.REFUSED
    finally:
        os.close(fd)
    return Delivery.SENT


def describe(stat: ProcessStat) -> LeftProcess:
    """The process for a message."""
    directory = _PROC / str(stat.pid)
    try:
        status = (directory / "status").read_text(errors="replace")
        command = (
            (directory / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        status = command = ""
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    uid, name = fields.get("Uid", "").split(), fields.get("Name", "").strip()
    user = _user_name(int(uid[0])) if uid else "unknown"
    return LeftProcess(stat.pid, stat.start_ticks, user, (command or name)[:_MOST_LETTERS])


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def proportional_bytes(pid: int) -> int:
    """PSS in bytes: shared pages are counted once over all who share them. 0 when it cannot be read."""
    try:
        text = (_PROC / str(pid) / "smaps_rollup").read_bytes()
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def listening_inodes(ports: Iterable[int]) -> dict[int, set[int]]:
    """Port -> socket inodes that listen on it in this network namespace, over IPv4 and IPv6."""
    wanted = set(ports)
    found: dict[int, set[int]] = {}
    for table in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / table).read_bytes().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] != b"0A":  # TCP_LISTEN
                continue
            port = int(fields[1].rpartition(b":")[2], 16)
            if port in wanted:
                found.setdefault(port, set()).add(int(fields[9]))
    return found


def owns_socket(pid: int, inodes: set[int]) -> bool:
    """Whether the process has one of these sockets open."""
    names = {f"socket:[{inode}]" for inode in inodes}
    directory = _PROC / str(pid) / "fd"
    try:
        entries = list(directory.iterdir())
    except OSError:
        return False
    for entry in entries:
        try:
            if str(entry.readlink()) in names:
                return True
        except OSError:
            continue
    return False
