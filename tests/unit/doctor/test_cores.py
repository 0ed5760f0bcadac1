"""The usable cores, from files as the kernel writes them and from this process's affinity mask."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.core.job.cpu_budget import Cores
from orchestrator.host.cores import usable_cores

HERE = len(os.sched_getaffinity(0))


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc of a process in the control group /a/b (v2)."""
    return write(tmp_path / "proc/self/cgroup", "0::/a/b\n").parents[1]


@pytest.fixture
def cgroups(tmp_path: Path) -> Path:
    (tmp_path / "cgroup/a/b").mkdir(parents=True)
    return tmp_path / "cgroup"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_mask_counts_without_a_quota(proc: Path, cgroups: Path) -> None:
    write(cgroups / "a/b/cpu.max", "max 100000\n")
    cores = usable_cores(proc, cgroups)
    assert cores == Cores(os.cpu_count() or 1, HERE)
    assert cores.usable == HERE


def test_tightest_quota_of_all_groups_counts(proc: Path, cgroups: Path) -> None:
    write(cgroups / "a/b/cpu.max", "80000 100000\n")
    write(cgroups / "a/cpu.max", "25000 50000\n")
    write(cgroups / "cpu.max", "900000 100000\n")
    cores = usable_cores(proc, cgroups)
    assert (cores.quota, cores.quota_at) == (0.5, str(cgroups / "a"))
    assert cores.usable == 0.5


def test_quota_of_cgroups_v1(proc: Path, cgroups: Path) -> None:
    write(proc / "self/cgroup", "4:cpu,cpuacct:/box\n9:name=systemd:/\n0::/\n")
    write(cgroups / "cpu,cpuacct/box/cpu.cfs_quota_us", "-1\n")
    write(cgroups / "cpu,cpuacct/box/cpu.cfs_period_us", "100000\n")
    assert usable_cores(proc, cgroups).quota is None
    write(cgroups / "cpu,cpuacct/box/cpu.cfs_quota_us", "150000\n")
    assert usable_cores(proc, cgroups).quota == 1.5


def test_quota_above_the_mask_is_ignored(proc: Path, cgroups: Path) -> None:
    write(cgroups / "cpu.max", f"{(HERE + 5) * 100_000} 100000\n")
    assert usable_cores(proc, cgroups).usable == HERE


@pytest.mark.parametrize("text", ["", "\n", "max", "x y", "100000 0", "-5 100000", "1 2 3"])
def test_invalid_quota_limits_nothing(proc: Path, cgroups: Path, text: str) -> None:
    write(cgroups / "cpu.max", text)
    assert usable_cores(proc, cgroups).quota is None


def test_mask_of_one_core(proc: Path, cgroups: Path) -> None:
    mask = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mask)})
        assert usable_cores(proc, cgroups).usable == 1
    finally:
        os.sched_setaffinity(0, mask)
