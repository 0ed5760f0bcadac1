"""The training program with a fake TPU: the calls to TensorFlow that reach a TPU are printed."""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

from worker.__main__ import main

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
    tf.distribute.cluster_resolver.TPUClusterResolver = resolve
    tf.config.experimental_connect_to_cluster = lambda resolver: print(f"connect {resolver}")
    tf.tpu.experimental.initialize_tpu_system = initialize
    tf.distribute.TPUStrategy = make_strategy
    main(sys.argv[1:])
