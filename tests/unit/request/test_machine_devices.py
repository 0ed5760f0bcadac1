"""This machine's GPUs, found by the driver's library, by nvidia-smi or by their devices; and its TPUs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from spec_making import MakeSpec

from orchestrator.core.errors import UsageError
from orchestrator.core.job.choices import Strategy
from orchestrator.core.job.strategy import StrategyChoice
from orchestrator.host.checks import refuse_problems
from orchestrator.host.checks.context import Context
from orchestrator.host.checks.devices import check_tpu
from orchestrator.host.devices import gpu_inventory

GIB = 1 << 30


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """A /dev with two GPUs and the driver's other devices."""
    directory = tmp_path / "dev"
    directory.mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (directory / name).touch()
    return directory


class Driver:
    """The module pynvml with two GPUs, or with an error at every call."""

    class NVMLError(Exception):
        pass

    def __init__(self, error: str | None = None, lost: int | None = None) -> None:
        self.error = error
        self.lost = lost
        self.is_open = False

    def nvmlInit(self) -> None:
        if self.error:
            raise self.NVMLError(self.error)
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:
        assert self.is_open
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == self.lost:
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:
        return f"GPU-{handle}".encode()

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "Made-up"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=16 * GIB)


def test_gpus_are_read_from_the_driver_library(dev: Path) -> None:
    driver = Driver()
    found = gpu_inventory({}, dev, lambda: driver)
    assert [(gpu.name, gpu.uuid, gpu.model, gpu.memory_bytes) for gpu in found.gpus] == [
        ("0", "GPU-0", "Made-up", 16 * GIB),
        ("1", "GPU-1", "Made-up", 16 * GIB),
    ]
    assert not driver.is_open


def test_driver_error_is_the_reason_for_no_gpu(dev: Path) -> None:
    found = gpu_inventory({}, dev, lambda: Driver(error="driver and library versions differ"))
    assert not found.gpus
    assert "versions differ" in found.lack


def test_lost_gpu_is_not_counted(dev: Path) -> None:
    assert [gpu.name for gpu in gpu_inventory({}, dev, lambda: Driver(lost=0)).gpus] == ["1"]


def test_driver_is_not_loaded_without_devices(tmp_path: Path) -> None:
    assert not gpu_inventory({}, tmp_path, lambda: Driver(error="was asked")).lack.count("was asked")


def test_nvidia_smi_is_used_without_the_library(dev: Path, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'GPU 0: Made-up (UUID: GPU-1)'\necho 'GPU 1: Made-up (UUID: GPU-2)'\n"
    )
    program.chmod(0o755)
    found = gpu_inventory({"PATH": str(tmp_path)}, dev, lambda: None)
    assert [(gpu.name, gpu.model) for gpu in found.gpus] == [("0", "Made-up"), ("1", "Made-up")]
    program.write_text("#!/bin/sh\necho 'no devices were found'\nexit 6\n")
    assert "no devices were found" in gpu_inventory({"PATH": str(tmp_path)}, dev, lambda: None).lack
    program.unlink()
    assert [gpu.name for gpu in gpu_inventory({"PATH": str(tmp_path)}, dev, lambda: None).gpus] == ["0", "1"]


def refusal(make_spec: MakeSpec, root: Path, tpu: str | None = None, **environ: str) -> str | None:
    """The refusal of --strategy tpu by a machine whose files are below `root`."""
    spec = make_spec(strategy=StrategyChoice(Strategy.TPU, tpu=tpu))
    try:
        refuse_problems(Context(spec, environ, root=root), [check_tpu])
    except UsageError as error:
        return str(error)
    return None


def test_tpu_must_be_named_or_attached(make_spec: MakeSpec, tmp_path: Path) -> None:
    said = refusal(make_spec, tmp_path)
    assert said is not None and said.startswith(
        "--strategy tpu: no TPU found: this machine has none attached"
    )
    assert "neither --tpu nor KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, TPU_NAME or TPU_CONFIG names one" in said
    assert "\n" not in said
    assert "--tpu is `local`" in (refusal(make_spec, tmp_path, "local") or "")
    assert "TPU_NAME is `local`" in (refusal(make_spec, tmp_path, TPU_NAME="local") or "")
    assert refusal(make_spec, tmp_path, TPU_NAME="") is not None
    assert refusal(make_spec, tmp_path, "mine") is None
    assert refusal(make_spec, tmp_path, TPU_NAME="mine") is None
    assert refusal(make_spec, tmp_path, TPU_CONFIG="{}") is None


def test_attached_tpu_is_accepted(make_spec: MakeSpec, tmp_path: Path) -> None:
    slot = tmp_path / "sys/bus/pci/devices/0000:00:04.0"
    slot.mkdir(parents=True)
    (slot / "vendor").write_text("0x1ae0\n")
    # Google's network card.
    (slot / "device").write_text("0x0042\n")
    assert refusal(make_spec, tmp_path) is not None
    (slot / "device").write_text("0x0063\n")
    assert refusal(make_spec, tmp_path) is None
    (slot / "device").write_text("0x0042\n")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/accel0").touch()
    assert refusal(make_spec, tmp_path, "local") is None


def test_other_strategies_need_no_tpu(make_spec: MakeSpec, tmp_path: Path) -> None:
    context = Context(make_spec(strategy=StrategyChoice(Strategy.MIRRORED)), {}, root=tmp_path)
    assert list(check_tpu(context)) == []
