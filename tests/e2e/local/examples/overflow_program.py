"""Runs three float16 steps under a strategy, with an overflow on one replica in the second step.

Prints the weight and the loss scale after each step.
"""

from __future__ import annotations

import sys

import keras
import tensorflow as tf

from worker.training.network import loss_scale, set_precision
from worker.training.replicas.strategies import central_storage

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
devices = ["CPU:0", "CPU:1"]
strategy = tf.distribute.MirroredStrategy(devices) if sys.argv[1] == "mirrored" else central_storage(devices)
set_precision("mixed_float16", workers=1)
with strategy.scope():
    weight = keras.Variable(1.0)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=4.0)
    optimizer.build([weight])


def one_replica(slope: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(slope * weight)
    optimizer.apply(tape.gradient(loss, [weight]), [weight])


@tf.function(autograph=False)  # type: ignore[untyped-decorator]
def step(slopes: tf.distribute.DistributedValues) -> None:
    strategy.run(one_replica, args=(slopes,))


for numbers in ([0.25, 0.25], [0.25, float("inf")], [0.25, 0.25]):
    step(
        strategy.experimental_distribute_values_from_function(
            lambda context, numbers=numbers: tf.constant(numbers[context.replica_id_in_sync_group])
        )
    )
    print(f"weight {float(weight.numpy())} scale {loss_scale(optimizer)}")
