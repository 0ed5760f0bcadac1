"""TensorFlow has the planned devices as soon as a script has imported it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tasks import finished

from worker.bootstrap.tensorflow_settings import configure_devices, wanted_cpus

MIB = 1 << 20


def test_an_invalid_variable_is_logged_and_the_script_continues(tmp_path: Path) -> None:
    """The module `tensorflow` may even be one of the script."""
    (tmp_path / "tensorflow.py").write_text("config = None\n")
    task = finished(tmp_path, ["-c", "import tensorflow; print('went on')"], env={"ORCH_REPLICAS": "many"})
    assert task.process.returncode == 0
    assert "went on" in task.output
    assert "ORCH_REPLICAS: 'many' is not a whole number" in task.output


def test_number_of_logical_cpus() -> None:
    hosts = {"DTENSOR_JOBS": "a:1,b:2"}
    for environ, cpus in (
        ({}, None),
        ({"ORCH_REPLICAS": ""}, None),
        ({"ORCH_REPLICAS": "4"}, 4),
        ({"ORCH_MESH": "batch=2,model=2"}, 4),
        ({"ORCH_MESH": "batch=2,model=2", **hosts}, 2),
    ):
        assert wanted_cpus(environ) == cpus
    for environ in ({"ORCH_REPLICAS": "0"}, {"ORCH_MESH": "batch"}, {"ORCH_MESH": "batch=3", **hosts}):
        with pytest.raises(ValueError, match="ORCH_"):
            wanted_cpus(environ)


@dataclass
class Config:
    """Stands for tf.config on a machine with GPUs, and records the settings. Its names are TensorFlow's."""

    gpus: list[str]
    logical: dict[str, list[int | None]] = field(default_factory=dict)
    visible: list[str] | None = None

    def list_physical_devices(self, kind: str) -> list[str]:
        return ["CPU:0"] if kind == "CPU" else self.gpus

    def get_visible_devices(self, kind: str) -> list[str]:
        return self.gpus if self.visible is None else self.visible

    def set_visible_devices(self, devices: list[str], kind: str) -> None:
        self.visible = devices

    def LogicalDeviceConfiguration(self, memory_limit: int | None = None) -> int | None:
        return memory_limit

    def set_logical_device_configuration(self, device: str, parts: list[int | None]) -> None:
        self.logical[device] = parts


def configured(environ: dict[str, str], *gpus: str) -> Config:
    config = Config(list(gpus))
    tensorflow: Any = SimpleNamespace(config=config)
    configure_devices(tensorflow, environ)
    return config


def test_replicas_are_logical_cpus_even_with_gpus_and_a_mesh_uses_gpus_if_there_are_any() -> None:
    config = configured({"ORCH_REPLICAS": "2"}, "GPU:0")
    assert (config.logical, config.visible) == ({"CPU:0": [None, None]}, [])
    assert configured({"ORCH_MESH": "batch=2"}, "GPU:0", "GPU:1").logical == {}
    assert configured({"ORCH_MESH": "batch=2"}).logical == {"CPU:0": [None, None]}


def test_memory_limit_applies_to_each_gpu() -> None:
    config = configured({"ORCH_GPU_MEMORY": str(2048 * MIB + 5)}, "GPU:0", "GPU:1")
    assert config.logical == {"GPU:0": [2048], "GPU:1": [2048]}
    both = configured({"ORCH_GPU_MEMORY": str(8 * MIB), "ORCH_MESH": "batch=1"}, "GPU:0")
    assert both.logical == {"GPU:0": [8]}
    assert configured({"ORCH_GPU_MEMORY": "grow"}, "GPU:0").logical == {}
