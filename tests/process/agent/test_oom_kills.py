"""The kernel's out-of-memory kills: from its files as versions 1 and 2 of the control groups write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.agent.resource_failures import OomMark


class Kernel:
    """Its files, below a directory."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"

    def write(self, name: str, text: str) -> None:
        path = self.proc.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def mark(self) -> OomMark:
        return OomMark.now(self.proc, self.cgroups)

    def since(self, mark: OomMark) -> int | None:
        return mark.kills_since(self.proc, self.cgroups)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def test_oom_count_of_the_machine_without_a_group(kernel: Kernel) -> None:
    kernel.write("proc/vmstat", "nr_free_pages 1\noom_kill 3\n")
    mark = kernel.mark()
    assert kernel.since(mark) == 0
    kernel.write("proc/vmstat", "nr_free_pages 1\noom_kill 5\n")
    assert kernel.since(mark) == 2


@pytest.mark.parametrize(
    ("groups", "file"),
    [
        ("0::/job\n", "cgroup/job/memory.events"),
        ("4:cpu,memory:/job\n0::/\n", "cgroup/memory/job/memory.oom_control"),
    ],
    ids=["v2", "v1"],
)
def test_oom_kill_in_another_group_is_not_counted(kernel: Kernel, groups: str, file: str) -> None:
    kernel.write("proc/self/cgroup", groups)
    kernel.write("proc/vmstat", "oom_kill 1\n")
    kernel.write(file, "oom_kill_disable 0\noom 7\noom_kill 1\n")
    mark = kernel.mark()
    kernel.write("proc/vmstat", "oom_kill 2\n")
    assert kernel.since(mark) == 0
    kernel.write(file, "oom_kill_disable 0\noom 8\noom_kill 2\n")
    assert kernel.since(mark) == 1


def test_oom_count_is_unknown_without_a_source(kernel: Kernel) -> None:
    assert kernel.since(kernel.mark()) is None
    kernel.write("proc/vmstat", "oom_kill many\n")
    assert kernel.since(kernel.mark()) is None


@pytest.mark.skipif("oom_kill" not in Path("/proc/vmstat").read_text(), reason="this kernel does not count")
def test_oom_count_is_read_from_this_kernel() -> None:
    assert OomMark.now().kills_since() is not None
