"""The limits on the number of tasks, from files as the kernel writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.host.headroom import Headroom, Limit, free_memory, limits, total_memory

GIB = 1 << 30


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc that limits little, of a process in the control group /a/b (v2)."""
    root = tmp_path / "proc"
    write(root / "sys/net/ipv4/ip_local_port_range", "1\t65535\n")
    write(root / "sys/kernel/threads-max", "100000000\n")
    write(root / "sys/kernel/pid_max", "100000000\n")
    write(root / "loadavg", "0.00 0.00 0.00 1/500 4242\n")
    write(root / "self/cgroup", "0::/a/b\n")
    write(
        root / "meminfo", meminfo(MemTotal=64 * GIB, MemAvailable=48 * GIB, SwapTotal=8 * GIB, SwapFree=GIB)
    )
    return root


@pytest.fixture
def cgroups(tmp_path: Path) -> Path:
    (tmp_path / "cgroup" / "a" / "b").mkdir(parents=True)
    return tmp_path / "cgroup"


def meminfo(**sizes: int) -> str:
    return "".join(f"{name}: {size >> 10:10} kB\n" for name, size in sizes.items())


def tightest(serves: bool, proc: Path, cgroups: Path) -> Headroom:
    return min(limits(serves, proc, cgroups).values(), key=lambda room: room.tasks)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_this_machine_has_headroom_and_a_limit() -> None:
    for serves in (True, False):
        room = min(limits(serves).values(), key=lambda room: room.tasks)
        assert 0 < room.tasks < 10_000
        assert room.what


def test_memory_of_the_machine_with_swap(proc: Path, cgroups: Path) -> None:
    assert (free_memory(proc, cgroups).size, free_memory(proc, cgroups).where) == (49 * GIB, "this machine")
    assert (total_memory(proc, cgroups).size, total_memory(proc, cgroups).where) == (72 * GIB, "this machine")


def test_available_memory_of_another_machine_is_not_used(proc: Path, cgroups: Path) -> None:
    write(proc / "meminfo", meminfo(MemTotal=4 * GIB, MemFree=3 * GIB, MemAvailable=48 * GIB, SwapFree=0))
    assert free_memory(proc, cgroups).size == 3 * GIB


def test_total_memory_of_a_control_group(proc: Path, cgroups: Path) -> None:
    write(cgroups / "a/memory.max", str(GIB))
    found = total_memory(proc, cgroups)
    assert (found.size, found.where) == (GIB, str(cgroups / "a"))


def test_tensorflow_needs_more_memory_than_other_programs(proc: Path, cgroups: Path) -> None:
    write(cgroups / "a/memory.max", str(GIB))
    write(cgroups / "a/memory.current", "0")
    at = str(cgroups / "a")
    assert tightest(True, proc, cgroups) == Headroom(2, "free memory is 1.0 GiB (about 350 MiB per task)", at)
    assert tightest(False, proc, cgroups) == Headroom(
        51, "free memory is 1.0 GiB (about 20 MiB per task)", at
    )


def test_memory_limit_of_any_parent_cgroup_counts(proc: Path, cgroups: Path) -> None:
    write(cgroups / "a/b/memory.max", "max")
    write(cgroups / "a/b/memory.current", "0")
    write(cgroups / "memory.max", str(2 * GIB))
    write(cgroups / "memory.current", str(GIB + GIB // 2))
    write(cgroups / "memory.stat", f"anon 1\ninactive_file {GIB // 2}\n")
    assert tightest(True, proc, cgroups).tasks == 2


def test_full_cgroup_has_no_headroom(proc: Path, cgroups: Path) -> None:
    write(cgroups / "a/memory.max", str(GIB))
    write(cgroups / "a/memory.current", str(2 * GIB))
    assert tightest(True, proc, cgroups).tasks == 0


def test_memory_limit_of_cgroups_version_one(proc: Path, cgroups: Path) -> None:
    write(proc / "self/cgroup", "4:memory:/a\n9:name=systemd:/\n0::/\n")
    write(cgroups / "memory/a/memory.limit_in_bytes", str(GIB))
    write(cgroups / "memory/a/memory.usage_in_bytes", "0")
    assert tightest(True, proc, cgroups).tasks == 2


def test_thread_limit_of_the_cgroup(proc: Path, cgroups: Path) -> None:
    write(cgroups / "a/pids.max", "500")
    write(cgroups / "a/pids.current", "150")
    assert tightest(True, proc, cgroups) == Headroom(
        3, "the limit on threads leaves 350 (about 100 per task)"
    )
    write(cgroups / "a/pids.current", "600")
    assert tightest(True, proc, cgroups).tasks == 0


@pytest.mark.parametrize("limit", ["threads-max", "pid_max"])
def test_thread_limit_of_the_machine(proc: Path, cgroups: Path, limit: str) -> None:
    write(proc / "sys/kernel" / limit, "1000\n")
    assert tightest(True, proc, cgroups).tasks == 5


def test_port_range_is_a_limit(proc: Path, cgroups: Path) -> None:
    write(proc / "sys/net/ipv4/ip_local_port_range", "40000\t40004\n")
    assert tightest(False, proc, cgroups) == Headroom(5, "the kernel has 5 ports to choose from")


def test_missing_files_limit_nothing(tmp_path: Path) -> None:
    found = limits(True, tmp_path / "none", tmp_path / "none")
    assert found[Limit.MEMORY].tasks > 1000
    assert Limit.THREADS not in found or os.geteuid() != 0
