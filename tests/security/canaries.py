"""Files that must not change, and processes that must get no signal."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.store.runs.liveness import start_ticks

_COMPARED_BYTES = 1 << 20

Snapshot = dict[str, tuple[object, ...]]


def snapshot(place: Path) -> Snapshot:
    """Return kind, mode, owner, size, time and content of everything below a directory, as far as paths reach."""
    found: Snapshot = {}
    left = [place]
    while left:
        path = left.pop()
        content: object = None
        try:
            status = path.lstat()
        except OSError:  # deeper than a path can be long
            continue
        with contextlib.suppress(OSError):
            if stat.S_ISLNK(status.st_mode):
                content = path.readlink()
            elif stat.S_ISREG(status.st_mode) and status.st_size < _COMPARED_BYTES:
                content = path.read_bytes()
            elif stat.S_ISDIR(status.st_mode):
                left += path.iterdir()
        found[str(path.relative_to(place))] = (
            *(
                status.st_mode,
                status.st_uid,
                status.st_gid,
                status.st_ino,
                status.st_size,
                status.st_mtime_ns,
            ),
            content,
        )
    return found


@dataclass(frozen=True)
class Process:
    """A process that blocks all signals, so that those it gets stay pending."""

    running: subprocess.Popen[bytes]

    @property
    def identity(self) -> tuple[int, int]:
        """The pid and the start time in ticks."""
        return self.running.pid, start_ticks(self.running.pid) or 0

    def signals(self) -> set[str]:
        """Return what the process got: masks of pending signals, `stopped`, or its exit."""
        if self.running.poll() is not None:
            return {f"exit {self.running.returncode}"}
        status = Path(f"/proc/{self.running.pid}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        pending = {fields["SigPnd"].strip(), fields["ShdPnd"].strip()} - {"0" * 16}
        return pending | ({"stopped"} if fields["State"].startswith(("T", "t")) else set())


@contextlib.contextmanager
def processes_of(uids: tuple[int, ...], run_id: str) -> Iterator[list[Process]]:
    """Start two processes of each user: one with a run's id in its environment, and one without."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    processes = []
    try:
        for uid in uids:
            who = {"user": uid, "group": uid, "extra_groups": []} if uid != os.geteuid() else {}
            for env in ({"ORCH_RUN_ID": run_id, "ORCH_RUN_DIR": f"/another/orch/runs/{run_id}"}, {}):
                argv = ["/bin/sleep", "86400"]
                processes.append(Process(subprocess.Popen(argv, env=env, cwd="/", **who)))  # type: ignore[call-overload]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        yield processes
    finally:
        for process in processes:
            process.running.kill()
            process.running.wait()
