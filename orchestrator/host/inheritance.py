"""The attributes that a process inherits from the one that starts it, besides environment and directory."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from orchestrator.host.cores import usable_cores
from orchestrator.host.headroom import THIS_MACHINE, total_memory

# Lines of /proc/PID/status.
_OF_STATUS = {
    "Umask": "the umask",
    "Uid": "the user",
    "Gid": "the group",
    "Groups": "the groups",
    "SigIgn": "the ignored signals",
    "SigBlk": "the blocked signals",
    **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "a capability"),
    "NoNewPrivs": "no_new_privs",
    "Seccomp": "the seccomp filter",
}
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid_for_children", "time_for_children", "user", "uts")
_LIMITS = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))


def inheritance() -> dict[str, str]:
    """Return the attributes of this process by their names for people. Affinity, niceness, and signals are the
    calling thread's.

    Only the limits of control groups are compared, because terminals often have separate groups.
    """
    memory = total_memory()
    found = {
        "the allowed cores": str(sorted(os.sched_getaffinity(0))),
        "the niceness": str(os.getpriority(os.PRIO_PROCESS, 0)),
        "the scheduling policy": str(os.sched_getscheduler(0)),
        "the CPU quota": str(usable_cores().quota),
        "the memory limit": "" if memory.where == THIS_MACHINE else str(memory.size),
        "the root directory": _link("root"),
        "the personality": _text("personality"),
        "the OOM score": _text("oom_score_adj"),
    }
    found |= {f"the {name} namespace": _link(f"ns/{name}") for name in _NAMESPACES}
    found |= {f"the limit {name}": str(resource.getrlimit(getattr(resource, name))) for name in _LIMITS}
    # os.umask() reads the umask by changing it, which other threads would notice.
    for line in Path("/proc/thread-self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in _OF_STATUS:
            found[f"{_OF_STATUS[name]} ({name})"] = value.strip()
    return found


def _link(name: str) -> str:
    try:
        return str(Path("/proc/self", name).readlink())
    except OSError:
        return ""


def _text(name: str) -> str:
    try:
        return Path("/proc/self", name).read_text().strip()
    except OSError:
        return ""
