"""How many tasks this machine can hold, and which limit decides that."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from orchestrator.host.kernel_files import (
    CGROUPS,
    PROC,
    groups,
    read_field,
    read_memory,
    read_number,
    read_text,
)

_MIB = 1 << 20
# A training worker's PSS and threads with TensorFlow 2.21 on two cores, rounded down: only what certainly does not
# fit is refused.
_TENSORFLOW_MIB, _TENSORFLOW_THREADS = 350, 100
_OTHER_MIB, _OTHER_THREADS = 20, 1
# The agent's open files: for each task its port, its pidfd and its progress pipe; and for itself, which is enough for
# the supervisor's log, locks and sockets as well (17 were enough in tests).
_FILES_PER_TASK, _OWN_FILES = 3, 21
FEWEST_FILES = _OWN_FILES + _FILES_PER_TASK
# The supervisor's open files with other hosts: for itself, while it starts a connection; for each host its link, its
# two logs, and the process of a link that has ended; for each task its log, to write and to read.
_OWN_FILES_WITH_HOSTS, _FILES_PER_HOST, _FILES_PER_REMOTE_TASK = 26, 6, 2
THIS_MACHINE = "this machine"
# More bytes than any machine has.
_UNKNOWN = 1 << 60


@dataclass(frozen=True)
class Headroom:
    """The number of tasks that a limit allows; `what` describes the limit, `where` is the place it is set."""

    tasks: int
    what: str
    where: str | None = None


class Limit(StrEnum):
    MEMORY = "memory"
    FILES = "open files"
    PORTS = "ports"
    THREADS = "threads"


@dataclass(frozen=True)
class Memory:
    """`size` in bytes; `where` is this machine or a control group's directory."""

    size: int
    where: str

    @property
    def is_known(self) -> bool:
        return self.size < _UNKNOWN


def limits(serves: bool, proc: Path = PROC, cgroups: Path = CGROUPS) -> dict[Limit, Headroom]:
    """How many more tasks each limit allows, estimated generously; `serves`: they run TensorFlow.

    A missing file and the value "max" limit nothing. Without a limit on threads, THREADS is missing.
    """
    found = {
        Limit.MEMORY: _memory_headroom(serves, proc, cgroups),
        Limit.FILES: _files(),
        Limit.PORTS: _ports(proc),
    }
    threads = min(_threads_left(proc, cgroups), default=None)
    if threads is not None:
        each = _TENSORFLOW_THREADS if serves else _OTHER_THREADS
        what = f"the limit on threads leaves {max(0, threads):,} (about {each} per task)"
        found[Limit.THREADS] = Headroom(max(0, threads) // each, what)
    return found


def files_with_hosts(hosts: int, tasks: int) -> int:
    """The number of files that the supervisor of a run with other hosts must be able to open."""
    return _OWN_FILES_WITH_HOSTS + _FILES_PER_HOST * hosts + _FILES_PER_REMOTE_TASK * tasks


@contextmanager
def many_files() -> Iterator[None]:
    """Raise this process's limit on open files as far as it may: a run has a log for each task, and hosts have
    connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def free_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> Memory:
    """The memory that is still available, with swap: this machine's or that of its tightest control group."""
    available, total = read_memory(proc, "MemAvailable"), read_memory(proc, "MemTotal")
    if available is None or (total is not None and available > total):
        # Some containers show the host's MemAvailable beside their own total.
        available = read_memory(proc, "MemFree")
    size = _UNKNOWN if available is None else available + (read_memory(proc, "SwapFree") or 0)
    machine = Memory(size, THIS_MACHINE)
    return min((machine, *_cgroup_memory_left(proc, cgroups)), key=lambda free: free.size)


def total_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> Memory:
    """The memory that all tasks together can ever have, with swap."""
    machine = Memory(read_memory(proc, "MemTotal", "SwapTotal") or _UNKNOWN, THIS_MACHINE)
    limited = (
        Memory(most, str(group)) for group in groups(proc, cgroups, "memory") if (most := _most(group))
    )
    return min((machine, *limited), key=lambda memory: memory.size)


def _cgroup_memory_left(proc: Path, cgroups: Path) -> Iterator[Memory]:
    """Bytes left in each control group. Page cache that the kernel can reclaim counts as free."""
    for group in groups(proc, cgroups, "memory"):
        most = _most(group)
        used = read_number(group / "memory.current", group / "memory.usage_in_bytes")
        if most is not None and used is not None:
            stat = group / "memory.stat"
            cache = read_field(stat, "inactive_file") or read_field(stat, "total_inactive_file")
            yield Memory(most - max(0, used - cache), str(group))


def _most(group: Path) -> int | None:
    return read_number(group / "memory.max", group / "memory.limit_in_bytes")


def _memory_headroom(serves: bool, proc: Path, cgroups: Path) -> Headroom:
    free = free_memory(proc, cgroups)
    each = _TENSORFLOW_MIB if serves else _OTHER_MIB
    what = f"free memory is {free.size / (1 << 30):.1f} GiB (about {each} MiB per task)"
    return Headroom(max(0, free.size) // (each * _MIB), what, free.where)


def _files() -> Headroom:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = read_number(Path("/proc/sys/fs/nr_open")) or 1 << 20
    tasks = max(0, hard - _OWN_FILES) // _FILES_PER_TASK
    return Headroom(tasks, f"the limit on open files is {hard:,} (ulimit -Hn)")


def _ports(proc: Path) -> Headroom:
    span = read_text(proc / "sys/net/ipv4/ip_local_port_range").split()
    count = int(span[1]) - int(span[0]) + 1 if len(span) == 2 else 65_535
    return Headroom(count, f"the kernel has {count:,} ports to choose from")


def _threads_left(proc: Path, cgroups: Path) -> Iterator[int]:
    # loadavg's fourth field is running/all.
    fields = read_text(proc / "loadavg").split()
    used = int(fields[3].partition("/")[2]) if len(fields) > 3 else 0
    for limit in ("sys/kernel/threads-max", "sys/kernel/pid_max"):
        if (most := read_number(proc / limit)) is not None:
            yield most - used
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    # The kernel does not apply it to root.
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:
        yield soft - _own_thread_count()
    for group in groups(proc, cgroups, "pids"):
        most, now = read_number(group / "pids.max"), read_number(group / "pids.current")
        if most is not None and now is not None:
            yield most - now


def _own_thread_count() -> int:
    import psutil  # takes 0.01 s, and not every machine has the limit that needs it

    found = (process.info for process in psutil.process_iter(["num_threads", "uids"]))
    return sum(
        each["num_threads"] or 0 for each in found if each["uids"] and each["uids"].real == os.geteuid()
    )
