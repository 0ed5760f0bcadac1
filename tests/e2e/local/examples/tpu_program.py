"""The training program with a fake TPU: the calls to TensorFlow that reach a TPU are printed."""

from __future__ import annotations

import os
import sys
from typing import Any

from worker.training.data.datasets import load_dataset
from worker.training.options.parser import parse_options
from worker.training.process.environment import read_place
from worker.training.process.output import without_startup_messages
from worker.training.process.progress import ProgressChannel

CORES = 2


def resolve(tpu: str | None) -> str:
    print(f"resolve {tpu}")
    return f"resolver of {tpu}"


def initialize(resolver: str) -> None:
    """Make one logical CPU device per core."""
    print(f"initialize {resolver}")
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * CORES)


def make_strategy(resolver: str) -> Any:
    print(f"strategy of {resolver}")
    return tf.distribute.MirroredStrategy([f"CPU:{core}" for core in range(CORES)])


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    options = parse_options(sys.argv[1:])
    with without_startup_messages():
        import tensorflow as tf

    tf.distribute.cluster_resolver.TPUClusterResolver = resolve
    tf.config.experimental_connect_to_cluster = lambda resolver: print(f"connect {resolver}")
    tf.tpu.experimental.initialize_tpu_system = initialize
    tf.distribute.TPUStrategy = make_strategy
    from worker.__main__ import train
    from worker.training.job import Job

    dataset = load_dataset(options.dataset, options.seed)
    train(Job(options, read_place(os.environ), dataset), ProgressChannel(None))
