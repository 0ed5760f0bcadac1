"""The built-in program's options as one value, with their words, defaults and limits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

STRATEGIES = (
    "multi_worker_mirrored",
    "mirrored",
    "one_device",
    "central_storage",
    "parameter_server",
    "tpu",
    "dtensor",
)
PARAMETER_SERVER = "parameter_server"
LOOPS = ("fit", "custom")
CHECKPOINTS = ("manager", "backup", "preemption")

LARGEST_SEED = 2**31 - 1
# Parts into which a mesh may cut the batch or the model.
MOST_PARTS = 1024


@dataclass(frozen=True)
class Options:
    """The checked options. `batch_size` and `learning_rate` are per replica; `global_batch` is over all replicas (None:
    the sum)."""

    epochs: int = 10
    batch_size: int = 16
    global_batch: int | None = None
    learning_rate: float = 0.002
    steps_per_epoch: int | None = None
    dataset: str = "digits"
    auto_shard: str = "data"
    seed: int = 7
    checkpoint_dir: Path = Path("checkpoints")
    keep: int = 3
    summary: bool = False
    strategy: str = "multi_worker_mirrored"
    loop: str = "fit"
    precision: str = "float32"
    replicas: int | None = None
    device: str | None = None
    tpu: str | None = None
    mesh: tuple[int, int] | None = None
    communication: str = "auto"
    partitioner: str = "none"
    width: int = 1
    device_memory: int | None = None
    input: str = "dataset"
    last_batch: str = "full"
    check_data: bool = False
    checkpoint: str = "manager"
    tensorboard: Path | None = None
    export: str = "both"
