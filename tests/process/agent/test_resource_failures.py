"""The kernel's out-of-memory kills, as its files of both versions of control groups count them, and full disks."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.agent.resource_failures import DiskChecks, OomMark


class Kernel:
    """Its files, below a directory."""

    def __init__(self, root: Path, **files: str) -> None:
        self.places = root / "proc", root / "cgroup"
        self.write(**files)

    def write(self, **files: str) -> None:
        for name, text in files.items():
            path = self.places[0].parent / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def since(self, mark: OomMark) -> int | None:
        return mark.kills_since(*self.places)


def test_oom_count_of_the_machine_without_a_group(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    assert kernel.since(OomMark.now(*kernel.places)) is None
    kernel.write(**{"proc/vmstat": "oom_kill many\n"})
    assert kernel.since(OomMark.now(*kernel.places)) is None
    kernel.write(**{"proc/vmstat": "nr_free_pages 1\noom_kill 3\n"})
    mark = OomMark.now(*kernel.places)
    assert kernel.since(mark) == 0
    kernel.write(**{"proc/vmstat": "nr_free_pages 1\noom_kill 5\n"})
    assert kernel.since(mark) == 2


@pytest.mark.parametrize(
    ("groups", "file"),
    [
        ("0::/job\n", "cgroup/job/memory.events"),
        ("4:cpu,memory:/job\n0::/\n", "cgroup/memory/job/memory.oom_control"),
    ],
    ids=["v2", "v1"],
)
def test_oom_kill_in_another_group_is_not_counted(tmp_path: Path, groups: str, file: str) -> None:
    kills = "oom_kill_disable 0\noom 7\noom_kill {}\n"
    files = {"proc/self/cgroup": groups, "proc/vmstat": "oom_kill 1\n", file: kills.format(1)}
    kernel = Kernel(tmp_path, **files)
    mark = OomMark.now(*kernel.places)
    kernel.write(**{"proc/vmstat": "oom_kill 2\n"})
    assert kernel.since(mark) == 0
    kernel.write(**{file: kills.format(2)})
    assert kernel.since(mark) == 1


@pytest.mark.skipif("oom_kill" not in Path("/proc/vmstat").read_text(), reason="this kernel does not count")
def test_oom_count_is_read_from_this_kernel() -> None:
    assert OomMark.now().kills_since() is not None


def test_disk_check_is_delayed_and_shared_by_tasks() -> None:
    """A disk with room is not reported."""
    tried: list[tuple[str, ...]] = []

    def no_room(places: tuple[str, ...]) -> str | None:
        tried.append(places)
        return "full" if "/logs" in places else None

    checks = DiskChecks(no_room)
    for task in ("worker:0", "worker:1"):
        checks.request(100.0, task, ("/logs", "/checkpoints"))
    assert list(checks.run_due(100.0)) == [] and tried == []
    assert checks.due > 100.0
    assert list(checks.run_due(checks.due)) == [("worker:0", "full"), ("worker:1", "full")]
    assert tried == [("/logs", "/checkpoints")]
    assert checks.due == float("inf") and list(checks.run_due(float("inf"))) == []
    checks.request(100.0, "worker:0", ("/other",))
    assert list(checks.run_due(float("inf"))) == []
