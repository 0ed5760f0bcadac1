"""How many tasks this machine can still hold, and what sets the limit."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_MIB = 1 << 20
# Measured with TensorFlow 2.21, two cores: PSS and threads of a worker while it trains; rounded down, since
# only what surely cannot be is refused.
_TENSORFLOW_MIB, _TENSORFLOW_THREADS = 350, 100
_OTHER_MIB, _OTHER_THREADS = 20, 1
# A task costs the agent its held port, its pidfd and its progress pipe; the rest is the agent's own.
_AGENT_FILES_A_TASK, _AGENT_FILES = 3, 64
# Linux's MAX_ARG_STRLEN, the longest `NAME=VALUE`; and a task's share of it in TF_CONFIG, at its longest.
_LONGEST_VARIABLE, _TF_CONFIG_FRAME = 131_072, 100
_LONGEST_ADDRESS = len('"127.0.0.1:65535", ')


@dataclass(frozen=True)
class Headroom:
    """So many more tasks, because of `what` (a phrase that ends a sentence "... allows no more")."""

    tasks: int
    what: str


def headroom(serves: bool, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Headroom:
    """The tightest limit on further tasks, TensorFlow's (`serves`) or others; estimated, generously.

    Reads limits under `proc` and `cgroups` (v1 and v2); a file that is missing or says "max" limits nothing.
    """
    limits = [_memory(serves, proc, cgroups), _files(), _variable(), _ports(proc)]
    threads = min((left for left in _threads_left(proc, cgroups)), default=None)
    if threads is not None:
        each = _TENSORFLOW_THREADS if serves else _OTHER_THREADS
        what = f"the limit on threads leaves {max(0, threads):,} (about {each} a task)"
        limits.append(Headroom(max(0, threads) // each, what))
    return min(limits, key=lambda limit: limit.tasks)


def _memory(serves: bool, proc: Path, cgroups: Path) -> Headroom:
    available = psutil.virtual_memory().available + psutil.swap_memory().free
    free = min([available, *_cgroup_memory_left(proc, cgroups)])
    each = _TENSORFLOW_MIB if serves else _OTHER_MIB
    what = f"free memory is {free / (1 << 30):.1f} GiB (about {each} MiB a task)"
    return Headroom(max(0, free) // (each * _MIB), what)


def _files() -> Headroom:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = _read_number(Path("/proc/sys/fs/nr_open")) or 1 << 20
    tasks = max(0, hard - _AGENT_FILES) // _AGENT_FILES_A_TASK
    return Headroom(tasks, f"the limit on open files is {hard:,} (ulimit -Hn)")


def _variable() -> Headroom:
    """Every task's TF_CONFIG names all of them, in one environment variable."""
    tasks = (_LONGEST_VARIABLE - _TF_CONFIG_FRAME) // _LONGEST_ADDRESS
    return Headroom(tasks, "TF_CONFIG must fit into one environment variable (128 KiB on Linux)")


def _ports(proc: Path) -> Headroom:
    span = _read(proc / "sys/net/ipv4/ip_local_port_range").split()
    count = int(span[1]) - int(span[0]) + 1 if len(span) == 2 else 65_535
    return Headroom(count, f"there are {count:,} ports to choose from")


def _threads_left(proc: Path, cgroups: Path) -> Iterator[int]:
    everybody = _thread_count(proc)
    for limit in ("sys/kernel/threads-max", "sys/kernel/pid_max"):
        if (most := _read_number(proc / limit)) is not None:
            yield most - everybody
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    # The kernel does not count root's.
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:
        yield soft - _own_thread_count()
    for group in _groups(proc, cgroups, "pids"):
        most, now = _read_number(group / "pids.max"), _read_number(group / "pids.current")
        if most is not None and now is not None:
            yield most - now


def _thread_count(proc: Path) -> int:
    """All threads of the machine, from the fourth field of loadavg: running/all."""
    fields = _read(proc / "loadavg").split()
    return int(fields[3].partition("/")[2]) if len(fields) > 3 else 0


def _own_thread_count() -> int:
    user = os.geteuid()
    count = 0
    for process in psutil.process_iter():
        try:
            count += process.num_threads() if process.uids().real == user else 0
        except psutil.Error:
            continue
    return count


def _cgroup_memory_left(proc: Path, cgroups: Path) -> Iterator[int]:
    """Bytes left in each group around this process. What the page cache could give back counts as left."""
    for group in _groups(proc, cgroups, "memory"):
        most = _read_number(group / "memory.max", group / "memory.limit_in_bytes")
        used = _read_number(group / "memory.current", group / "memory.usage_in_bytes")
        if most is not None and used is not None:
            cache = _stat(group, "inactive_file") or _stat(group, "total_inactive_file")
            yield most - max(0, used - cache)


def _groups(proc: Path, cgroups: Path, controller: str) -> Iterator[Path]:
    """The directories of this process's group for a controller and of the groups around it, v2's and v1's."""
    for line in _read(proc / "self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            top = cgroups
        elif controller in controllers.split(","):
            top = cgroups / controllers
        else:
            continue
        group = top / path.strip("/")
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top))


def _stat(group: Path, field: str) -> int:
    for line in _read(group / "memory.stat").splitlines():
        name, _, number = line.partition(" ")
        if name == field and number.isdigit():
            return int(number)
    return 0


def _read_number(*paths: Path) -> int | None:
    """The number in the first of the files that holds one."""
    texts = (_read(path).strip() for path in paths)
    return next((int(text) for text in texts if text.isascii() and text.isdigit()), None)


def _read(path: Path) -> str:
    """The file's text; nothing where the kernel does not have it."""
    try:
        return path.read_text()
    except OSError:
        return ""
