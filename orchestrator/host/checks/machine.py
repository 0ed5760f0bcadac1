"""Platform, processor, kernel settings and clock."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from orchestrator.host.checks.context import Context
from orchestrator.host.checks.finding import Finding, note, ok, problem, warning
from orchestrator.host.kernel_files import read_number, read_text

# pidfds that can be waited for.
_OLDEST_KERNEL = (5, 4)
_OLDEST_PYTHON, _NEWEST_PYTHON = (3, 11), (3, 13)
# 2025-01-01 in seconds since 1970. orch is younger, so an earlier time is wrong.
_FIRST_RELEASE = 1_735_689_600.0
# A reading takes microseconds, and TensorFlow and logs read the clock very often.
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
_CLOCK_SOURCE = "sys/devices/system/clocksource/clocksource0/current_clocksource"
# Bytes that multiprocessing's semaphores and a few queues need.
_LITTLE_SHARED_MEMORY = 16 << 20
_SHM = "/dev/shm"
_PTRACE = "sys/kernel/yama/ptrace_scope"


def check_platform(context: Context) -> Iterator[Finding]:
    kernel, python = context.kernel, context.orch_python
    found = re.match(r"(\d+)\.(\d+)", kernel)
    if context.system != "linux":
        text = f"orch runs on Linux only (it needs pidfds), and this is {context.system}"
        yield problem("platform", text, fix="run it on Linux 5.4 or newer")
    elif found and (int(found[1]), int(found[2])) < _OLDEST_KERNEL:
        text = f"orch needs Linux 5.4 or newer, and this kernel is {kernel}"
        yield problem("platform", text, fix="run it on Linux 5.4 or newer")
    elif not _OLDEST_PYTHON <= python[:2] <= _NEWEST_PYTHON:
        text = f"orch needs Python 3.11 to 3.13, and this is {python[0]}.{python[1]}"
        yield problem("platform", text, fix="install it under one of these")
    else:
        version = ".".join(map(str, python))
        yield ok("platform", f"Linux {kernel}; orch itself runs under Python {version}")


def check_system_calls(context: Context) -> Iterator[Finding]:
    """Find a system call that this kernel has, but a container does not allow."""
    refused = context.find_refused_call()
    if refused is None:
        return
    text = f"the system call {refused.name} is refused here ({refused.reason}), and orch identifies processes by it"
    fix = (
        "in a container: a newer container runtime, or docker run --security-opt seccomp=PROFILE with a profile that"
        " allows it; under gVisor: another runtime (--runtime=runc)"
    )
    if refused.is_of_python:
        fix = "install orch under a Python that was built on Linux 5.4 or newer"
    yield problem("system calls", text, refused.name, fix=fix)


def check_processor(context: Context) -> Iterator[Finding]:
    if context.processor not in ("x86_64", "AMD64"):
        return
    flags = re.search(r"^flags\s*:(.*)$", read_text(context.proc / "cpuinfo"), re.M)
    if flags and "avx" not in flags[1].split():
        text = "no AVX: TensorFlow's wheels are killed by SIGILL (illegal instruction) at import"
        fix = (
            "another machine or emulator setting (QEMU: -cpu host), or a TensorFlow built for this processor"
        )
        yield problem("processor", text, "/proc/cpuinfo", fix=fix)


def check_shared_memory(context: Context) -> Iterator[Finding]:
    directory = context.root / "dev/shm"
    try:
        room = context.statvfs(directory)
        error = None if os.access(directory, os.W_OK | os.X_OK) else "not writable"
    except OSError as failure:
        room, error = None, failure.strerror
    if room is None or error is not None:
        text = f"{_SHM} cannot be used ({error}): multiprocessing's locks fail"
        yield warning("shared memory", text, _SHM, fix=f"mount -t tmpfs -o mode=1777 tmpfs {_SHM}")
    elif (free := room.f_bavail * room.f_frsize) < _LITTLE_SHARED_MEMORY:
        fix = f"remove unused files there, or --shm-size of the container (mount -o remount,size=1G {_SHM})"
        yield warning("shared memory", f"{free >> 20} MiB are left in {_SHM}", _SHM, fix=fix)


def check_processes(context: Context) -> Iterator[Finding]:
    """Find kernel settings that hide processes or forbid debuggers."""
    value = None
    for line in read_text(context.proc / "self/mountinfo").splitlines():
        mount, _, kind = line.partition(" - ")
        words = mount.split()
        # The last mount at a place counts.
        if kind.startswith("proc ") and len(words) > 4 and words[4] == "/proc":
            found = re.search(r"\bhidepid=(\w+)", kind)
            value = found[1] if found and found[1] not in ("0", "off") else None
    if value is not None:
        text = f"/proc hides other users' processes (hidepid={value}); orch needs only yours"
        yield note("processes", text, "/proc")
    if read_number(context.proc / _PTRACE):
        text = "py-spy and gdb may not attach to a task that they did not start"
        yield note("debuggers", text, f"/proc/{_PTRACE}", fix="sudo, or sysctl kernel.yama.ptrace_scope=0")


def check_clock(context: Context) -> Iterator[Finding]:
    if context.now < _FIRST_RELEASE:
        text = "the clock is years behind: runs are sorted wrongly, and downloads by TLS fail"
        yield warning("clock", text, fix="set it: timedatectl set-ntp true")
    source = read_text(context.root / _CLOCK_SOURCE).strip()
    if source in _SLOW_CLOCKS:
        text = f"the clock source {source} is slow to read"
        yield note("clock", text, f"/{_CLOCK_SOURCE}", fix="use tsc, if the machine has a good one")
