"""What a machine has: memory, threads, ports, cores, GPUs and TPUs; and jobs that `orch up` refuses on it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from spec_making import make_spec, refusal

from orchestrator.core.job.choices import EngineName, Strategy
from orchestrator.core.job.cpu_budget import Cores
from orchestrator.core.job.gpus import Gpu, GpuInventory
from orchestrator.core.job.hosts import Host
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.job.strategy import StrategyChoice
from orchestrator.host.checks import CHECKS_OF_CONFIG, refuse_problems
from orchestrator.host.checks.context import Context
from orchestrator.host.checks.devices import check_tpu
from orchestrator.host.checks.directories import check_output_directories
from orchestrator.host.checks.resources import check_task_limits
from orchestrator.host.cores import usable_cores
from orchestrator.host.devices import gpu_inventory
from orchestrator.host.headroom import Headroom, Limit, free_memory, limits, total_memory

GIB = 1 << 30
HERE = len(os.sched_getaffinity(0))


def meminfo(**sizes: int) -> str:
    return "".join(f"{name}: {size >> 10:10} kB\n" for name, size in sizes.items())


# A /proc that limits little, of a process in the control group /a/b (v2).
PLENTY = {
    "proc/sys/net/ipv4/ip_local_port_range": "1\t65535\n",
    "proc/sys/kernel/threads-max": "100000000\n",
    "proc/sys/kernel/pid_max": "100000000\n",
    "proc/loadavg": "0.00 0.00 0.00 1/500 4242\n",
    "proc/self/cgroup": "0::/a/b\n",
    "proc/meminfo": meminfo(MemTotal=64 * GIB, MemAvailable=48 * GIB, SwapTotal=8 * GIB, SwapFree=GIB),
}
V1 = "4:memory,cpu:/a\n9:name=systemd:/\n0::/\n"
# Control groups with a limit.
FULL = {"cgroup/a/memory.max": str(GIB), "cgroup/a/memory.current": str(2 * GIB)}
EMPTY = {**FULL, "cgroup/a/memory.current": "0"}


class Machine:
    """Files below a directory in place of /proc and /sys/fs/cgroup."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        self._root = root
        self.write(PLENTY)
        (self.cgroups / "a/b").mkdir(parents=True)

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            (self._root / name).parent.mkdir(parents=True, exist_ok=True)
            (self._root / name).write_text(text)

    def tightest(self, serves: bool = True) -> Headroom:
        return min(limits(serves, self.proc, self.cgroups).values(), key=lambda room: room.tasks)

    def cores(self) -> Cores:
        return usable_cores(self.proc, self.cgroups)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# -- headroom


def test_this_machine_has_headroom_and_a_limit() -> None:
    for serves in (True, False):
        room = min(limits(serves).values(), key=lambda room: room.tasks)
        assert 0 < room.tasks < 10_000
        assert room.what


def test_memory_is_that_of_the_tightest_limit(machine: Machine) -> None:
    free, total = (read(machine.proc, machine.cgroups) for read in (free_memory, total_memory))
    assert (free.size, free.where) == (49 * GIB, "this machine")
    assert (total.size, total.where) == (72 * GIB, "this machine")
    machine.write({"cgroup/a/memory.max": str(GIB)})
    total = total_memory(machine.proc, machine.cgroups)
    assert (total.size, total.where) == (GIB, str(machine.cgroups / "a"))
    # The available memory of another machine is not used.
    other = meminfo(MemTotal=4 * GIB, MemFree=3 * GIB, MemAvailable=48 * GIB, SwapFree=0)
    machine.write({"proc/meminfo": other})
    assert free_memory(machine.proc, machine.cgroups).size == 3 * GIB


def test_tensorflow_needs_more_memory_than_other_programs(machine: Machine) -> None:
    machine.write(EMPTY)
    text, at = "free memory is 1.0 GiB (about {} MiB per task)", str(machine.cgroups / "a")
    assert machine.tightest(serves=True) == Headroom(2, text.format(350), at)
    assert machine.tightest(serves=False) == Headroom(51, text.format(20), at)


def test_tasks_that_each_limit_allows(tmp_path: Path) -> None:
    parents = {"cgroup/a/b/memory.max": "max", "cgroup/a/b/memory.current": "0"}
    half = {
        "cgroup/memory.max": str(2 * GIB),
        "cgroup/memory.current": str(GIB + GIB // 2),
        "cgroup/memory.stat": f"anon 1\ninactive_file {GIB // 2}\n",
    }
    old = {"cgroup/memory/a/memory.limit_in_bytes": str(GIB), "cgroup/memory/a/memory.usage_in_bytes": "0"}
    pids = {"cgroup/a/pids.max": "500"}
    table: dict[str, tuple[dict[str, str], int]] = {
        "a full group": (FULL, 0),
        "the limit of any parent": ({**parents, **half}, 2),
        "version one": ({"proc/self/cgroup": V1.replace(",cpu", ""), **old}, 2),
        "threads of a group": ({**pids, "cgroup/a/pids.current": "150"}, 3),
        "a group full of threads": ({**pids, "cgroup/a/pids.current": "600"}, 0),
        "threads of the machine": ({"proc/sys/kernel/threads-max": "1000\n"}, 5),
        "pids of the machine": ({"proc/sys/kernel/pid_max": "1000\n"}, 5),
        "ports": ({"proc/sys/net/ipv4/ip_local_port_range": "40000\t40004\n"}, 5),
    }
    found = {}
    for number, (name, (files, tasks)) in enumerate(table.items()):
        machine = Machine(tmp_path / str(number))
        machine.write(files)
        found[name] = machine.tightest(serves=name != "ports")
        assert found[name].tasks == tasks, name
    assert found["threads of a group"].what == "the limit on threads leaves 350 (about 100 per task)"
    assert found["ports"].what == "the kernel has 5 ports to choose from"


def test_missing_files_limit_nothing(tmp_path: Path) -> None:
    found = limits(True, tmp_path / "none", tmp_path / "none")
    assert found[Limit.MEMORY].tasks > 1000
    assert Limit.THREADS not in found or os.geteuid() != 0


# -- cores


def test_tightest_quota_of_all_groups_counts(machine: Machine) -> None:
    machine.write({"cgroup/a/b/cpu.max": "max 100000\n"})
    assert machine.cores() == Cores(os.cpu_count() or 1, HERE)
    assert machine.cores().usable == HERE
    machine.write({"cgroup/cpu.max": f"{(HERE + 5) * 100_000} 100000\n"})
    assert machine.cores().usable == HERE, "a quota above the mask is ignored"
    machine.write({"cgroup/a/b/cpu.max": "80000 100000\n", "cgroup/a/cpu.max": "25000 50000\n"})
    cores = machine.cores()
    assert (cores.quota, cores.quota_at, cores.usable) == (0.5, str(machine.cgroups / "a"), 0.5)


def test_quota_of_cgroups_v1(machine: Machine) -> None:
    machine.write({"proc/self/cgroup": "4:cpu,cpuacct:/box\n9:name=systemd:/\n0::/\n"})
    place = "cgroup/cpu,cpuacct/box/cpu.cfs"
    machine.write({f"{place}_quota_us": "-1\n", f"{place}_period_us": "100000\n"})
    assert machine.cores().quota is None
    machine.write({f"{place}_quota_us": "150000\n"})
    assert machine.cores().quota == 1.5


def test_invalid_quota_limits_nothing_and_a_mask_does(machine: Machine) -> None:
    for text in ("", "\n", "max", "x y", "100000 0", "-5 100000", "1 2 3"):
        machine.write({"cgroup/cpu.max": text})
        assert machine.cores().quota is None, text
    mask = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mask)})
        assert machine.cores().usable == 1
    finally:
        os.sched_setaffinity(0, mask)


# -- GPUs and TPUs


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """A /dev with two GPUs and the driver's other devices."""
    directory = tmp_path / "dev"
    directory.mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (directory / name).touch()
    return directory


class NVMLError(Exception):
    pass


def driver(error: str = "", lost: int | None = None) -> Any:
    """The module pynvml with two GPUs, or with an error at every call."""
    opened: list[bool] = []

    def fail(text: str) -> None:
        raise NVMLError(text)

    return SimpleNamespace(
        opened=opened,
        NVMLError=NVMLError,
        nvmlInit=lambda: fail(error) if error else opened.append(True),
        nvmlShutdown=opened.clear,
        nvmlDeviceGetCount=lambda: 2 * len(opened),
        nvmlDeviceGetHandleByIndex=lambda index: fail("GPU is lost") if index == lost else index,
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}".encode(),
        nvmlDeviceGetName=lambda handle: "Made-up",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=16 * GIB),
    )


def test_gpus_are_read_from_the_driver_library(dev: Path, tmp_path: Path) -> None:
    """It is not loaded without devices. A lost GPU is not counted."""
    sound, failed = driver(), driver(error="driver and library versions differ")
    found = gpu_inventory({}, dev, lambda: sound)
    assert found.gpus == tuple(Gpu(str(n), f"GPU-{n}", "Made-up", 16 * GIB) for n in range(2))
    assert not sound.opened
    assert [gpu.name for gpu in gpu_inventory({}, dev, lambda: driver(lost=0)).gpus] == ["1"]
    found = gpu_inventory({}, dev, lambda: failed)
    assert not found.gpus and "versions differ" in found.lack
    assert "versions differ" not in gpu_inventory({}, tmp_path, lambda: failed).lack


def test_nvidia_smi_is_used_without_the_library(dev: Path, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.touch(0o755)

    def asked(script: str) -> GpuInventory:
        program.write_text(f"#!/bin/sh\n{script}\n")
        return gpu_inventory({"PATH": str(tmp_path)}, dev, lambda: None)

    found = asked("echo 'GPU 0: Made-up (UUID: GPU-1)'; echo 'GPU 1: Made-up (UUID: GPU-2)'")
    assert [(gpu.name, gpu.model) for gpu in found.gpus] == [("0", "Made-up"), ("1", "Made-up")]
    assert "no devices were found" in asked("echo 'no devices were found'; exit 6").lack
    assert [gpu.name for gpu in gpu_inventory({"PATH": ""}, dev, lambda: None).gpus] == ["0", "1"]


def tpu_refusal(root: Path, tpu: str | None = None, **environ: str) -> str:
    """The refusal of --strategy tpu by a machine whose files are below `root`."""
    spec = make_spec(strategy=StrategyChoice(Strategy.TPU, tpu=tpu))
    return refusal(refuse_problems, Context(spec, environ, root=root), [check_tpu])


def test_tpu_must_be_named_or_attached(tmp_path: Path) -> None:
    said = tpu_refusal(tmp_path)
    assert said.startswith("--strategy tpu: no TPU found: this machine has none attached")
    assert "neither --tpu nor KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, TPU_NAME or TPU_CONFIG names one" in said
    assert "\n" not in said
    assert "--tpu is `local`" in tpu_refusal(tmp_path, "local")
    assert "TPU_NAME is `local`" in tpu_refusal(tmp_path, TPU_NAME="local")
    assert tpu_refusal(tmp_path, TPU_NAME="")
    named: tuple[dict[str, str], ...] = ({"tpu": "mine"}, {"TPU_NAME": "mine"}, {"TPU_CONFIG": "{}"})
    assert [tpu_refusal(tmp_path, **given) for given in named] == ["", "", ""]
    context = Context(make_spec(strategy=StrategyChoice(Strategy.MIRRORED)), {}, root=tmp_path)
    assert list(check_tpu(context)) == [], "other strategies need no TPU"


def test_attached_tpu_is_accepted(tmp_path: Path) -> None:
    slot = tmp_path / "sys/bus/pci/devices/0000:00:04.0"
    slot.mkdir(parents=True)
    (slot / "vendor").write_text("0x1ae0\n")
    # Google's network card, and a TPU.
    for device, is_refused in (("0x0063\n", False), ("0x0042\n", True)):
        (slot / "device").write_text(device)
        assert bool(tpu_refusal(tmp_path)) is is_refused, device
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/accel0").touch()
    assert not tpu_refusal(tmp_path, "local")


# -- jobs that are refused before anything is started


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    spec = make_spec(roles={"worker": 2}, log_dir=tmp_path / "a" / "b", checkpoint_dir=tmp_path)
    refuse_problems(Context(spec, os.environ))
    assert list(tmp_path.iterdir()) == []


def room_for(spec: JobSpec, **rooms: int) -> str:
    found = {Limit[name]: Headroom(tasks, name.lower()) for name, tasks in rooms.items()}
    context = Context(spec, {}, limits=lambda serves, proc, cgroups: found)
    return refusal(refuse_problems, context, [check_task_limits])


def test_tightest_limit_is_reported() -> None:
    """Tasks on other hosts need no room here."""
    tightest = room_for(make_spec(roles={"worker": 9}), MEMORY=8, FILES=3, THREADS=5)
    assert tightest.startswith("files: enough for 3 tasks, not 9 workers")
    hosts = (Host(name="a", destination="a"),)
    elsewhere = make_spec(roles={"worker": 2000}, engine=EngineName.SSH, hosts=hosts)
    assert not room_for(elsewhere, MEMORY=1, FILES=1)


def test_file_in_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for option in ("--log-dir", "--checkpoint-dir"):
        for directory in (tmp_path / "file", tmp_path / "file" / "below"):
            spec = make_spec(**{option[2:].replace("-", "_"): directory})
            said = refusal(refuse_problems, Context(spec, {}), CHECKS_OF_CONFIG)
            assert said.startswith(f"{option}: {tmp_path}/file is not a directory; name a"), directory


def test_unwritable_file_system_is_refused() -> None:
    for directory in ("/proc/here", "/sys/kernel/here/below"):
        expected = rf"--log-dir: {directory} cannot be written \(.+\); name a directory that can"
        context = Context(make_spec(log_dir=Path(directory)), {})
        assert re.match(expected, refusal(refuse_problems, context, [check_output_directories]))
