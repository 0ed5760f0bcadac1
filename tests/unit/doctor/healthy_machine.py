"""The context of the checks for a machine without problems, with the changes of one test."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from orchestrator.core.job.cpu_budget import Cores
from orchestrator.core.job.spec import Command, CommandKind, JobSpec
from orchestrator.host.checks import run_checks
from orchestrator.host.checks.context import Context
from orchestrator.host.checks.finding import Finding, Level
from orchestrator.host.headroom import Headroom, Limit
from orchestrator.host.installed import Interpreter

GIB = 1 << 30
MANY = 1000

PYTHON = Interpreter(
    path="/opt/python",
    version="3.11.2",
    versions={"tensorflow": "2.21.0", "keras": "3.15.1", "tf_keras": "2.21.0", "numpy": "2.0.0"},
    modules=("tensorflow", "keras", "tf_keras"),
)
SCRIPT = Command(
    kind=CommandKind.SCRIPT,
    words=("train.py",),
    argv=("/opt/python", "train.py"),
    serves=True,
    interpreter=("/opt/python",),
)
SPEC = JobSpec(
    roles={"worker": 2}, name="job", command=SCRIPT, directory=Path("/"), cwd=Path("/"), cores=Cores(8, 8)
)
FILES = {
    "proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu sse4_2 avx avx2\n",
    "proc/meminfo": f"MemTotal: {64 << 20} kB\nMemAvailable: {64 << 20} kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
    "proc/sys/vm/overcommit_memory": "0\n",
    "proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
    "proc/sys/kernel/yama/ptrace_scope": "0\n",
    "proc/self/mountinfo": "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n22 20 0:21 / /proc rw - proc proc rw\n",
    "proc/self/cgroup": "0::/a\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "dev/shm/empty": "",
}
ROOMS = {limit: Headroom(MANY, f"plenty of {limit}") for limit in Limit}
LIMITS = {resource.RLIMIT_NOFILE: 4096}


def disk(free: int = 100 * GIB, free_files: int = 10**6) -> Any:
    """The result of statvfs."""
    return SimpleNamespace(f_bavail=free, f_frsize=1, f_files=10**9, f_favail=free_files)


class HealthyMachine:
    """Makes contexts whose files are below `root` and whose state directory is `state`."""

    def __init__(self, root: Path, state: Path) -> None:
        self.root = root
        self.state = state

    def context(self, **changes: Any) -> Context:
        """A healthy context with changes.

        `files`: by path below the root; `spec`, `python`: fields; `environ`: variables; `limits`: soft limits by
        number; `rooms`: tasks by limit; `shm`, `disk`: statvfs' answers or an OSError; `state_mode`: None for a
        state directory that does not exist; `state_link`: it is a link; anything else is a field of Context.
        """
        self._write_files(FILES | changes.pop("files", {}))
        self._make_state(changes.pop("state_mode", 0o700), changes.pop("state_link", False))
        limits = LIMITS | changes.pop("limits", {})
        rooms = ROOMS | changes.pop("rooms", {})
        disks = {True: changes.pop("shm", disk(GIB)), False: changes.pop("disk", disk())}
        fields: dict[str, Any] = {
            "spec": SPEC.model_copy(update=changes.pop("spec", {})),
            "environ": {"PATH": "", **changes.pop("environ", {})},
            "python": replace(PYTHON, **changes.pop("python", {})),
            "root": self.root,
            "system": "linux",
            "kernel": "6.1.0",
            "processor": "x86_64",
            "orch_python": (3, 11, 2),
            "now": 1.8e9,
            "getrlimit": lambda number: (limits.get(number, resource.RLIM_INFINITY),) * 2,
            "statvfs": lambda path: _answer(disks[path == self.root / "dev/shm"]),
            "limits": lambda serves, proc, cgroups: rooms,
            "find_refused_call": lambda: None,
            "loopback_error": lambda: None,
            "port_sharing_error": lambda: None,
            "addresses": tuple,
            "probe_private_network": lambda: None,
            "content_errors": lambda directory: {},
            "ask_nvidia_smi": lambda environ: (None, None),
        }
        return Context(**(fields | changes))

    def findings(self, **changes: Any) -> list[Finding]:
        return run_checks(self.context(**changes))

    def bad(self, level: Level | None = None, **changes: Any) -> list[Finding]:
        """The findings that are not ok, or those of one level."""
        found = self.findings(**changes)
        return [f for f in found if (f.level is not Level.OK if level is None else f.level is level)]

    def only(self, **changes: Any) -> Finding:
        """The one finding that is not ok."""
        found = self.bad(**changes)
        assert len(found) == 1, found
        return found[0]

    def _write_files(self, files: Mapping[str, str]) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        for name, text in files.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)

    def _make_state(self, mode: int | None, is_link: bool) -> None:
        if self.state.is_symlink():
            self.state.unlink()
        shutil.rmtree(self.state.parent, ignore_errors=True)
        if mode is None:
            return
        directory = self.state.with_name("elsewhere") if is_link else self.state
        directory.mkdir(parents=True)
        directory.chmod(mode)
        if is_link:
            self.state.symlink_to(directory)


def _answer(room: os.statvfs_result | OSError) -> os.statvfs_result:
    if isinstance(room, OSError):
        raise room
    return room
