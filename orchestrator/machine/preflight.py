"""What can be known before a run begins: the right machine, room on it, directories that can be written."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.machine.headroom import Headroom, headroom
from orchestrator.spec import Command, CommandKind, JobSpec

# It answers in a twentieth of a second; more than this and the machine is not fit for a run.
_ANSWER_S = 30.0
OLDEST_KERNEL = (5, 4)
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)


def check(spec: JobSpec) -> None:
    """Everything below, for this machine; UsageError with the first thing that stands in the way.

    Starts no task and leaves nothing behind.
    """
    check_platform(sys.platform, platform.release(), sys.version_info[:2])
    check_builtin_options(spec.command, spec.cwd)
    check_room(spec, headroom(spec.command.serves))
    for directory, option in ((spec.log_dir, "--log-dir"), (spec.checkpoint_dir, "--checkpoint-dir")):
        if directory is not None:
            check_writable(directory, option)


def check_platform(system: str, kernel: str, python: tuple[int, int]) -> None:
    """Linux 5.4 or newer (pidfds that can be waited for), Python 3.11 to 3.13."""
    if system != "linux":
        raise UsageError(f"orch runs on Linux only (it needs pidfds), and this is {system}")
    found = re.match(r"(\d+)\.(\d+)", kernel)
    if found and (int(found[1]), int(found[2])) < OLDEST_KERNEL:
        raise UsageError(f"orch needs Linux 5.4 or newer, and this kernel is {kernel}")
    if not OLDEST_PYTHON <= python <= NEWEST_PYTHON:
        raise UsageError(
            f"orch needs Python 3.11 to 3.13, and this is {python[0]}.{python[1]}; install it under one"
        )


def check_builtin_options(command: Command, cwd: Path) -> None:
    """Ask the built-in program, which knows its options, whether they are right: one refusal instead of N."""
    if command.kind is not CommandKind.BUILTIN or not command.words:
        return
    argv = [sys.executable, "-P", "-m", "worker.options", *command.words]
    asked = subprocess.run(
        argv, cwd=cwd, capture_output=True, text=True, errors="replace", timeout=_ANSWER_S, check=False
    )
    if asked.returncode:
        reason = asked.stderr.strip().rpartition("\n")[2].partition("error: ")[2] or asked.stderr.strip()
        raise UsageError(f"the built-in program: {reason}; `orch up -- --help` lists its options")


def check_room(spec: JobSpec, room: Headroom) -> None:
    """Refuse what surely cannot be held. One task is always let through: the estimate is only an estimate."""
    asked = sum(spec.roles.values())
    most = max(1, room.tasks)
    if asked > most:
        raise UsageError(
            f"--workers: {asked:,} tasks are more than this machine can hold: {room.what},"
            f" which is enough for {most:,}; ask for {most:,} or fewer"
        )


def check_writable(directory: Path, option: str) -> None:
    """The directory, or the nearest one above it that exists, takes a new entry (made and removed again)."""
    try:
        existing = next(path for path in (directory, *directory.parents) if path.exists())
        if not existing.is_dir():
            raise UsageError(f"{option}: {existing} is not a directory; name another, or move the file away")
        with tempfile.TemporaryDirectory(prefix=".orch-probe-", dir=existing):
            return
    except OSError as error:
        raise UsageError(
            f"{option}: {directory} cannot be written ({error.strerror}); name a directory that can"
        ) from error
