"""Adam on a mesh: each device updates the part of the weights that it has, as keras.optimizers.Adam would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from worker.training.mesh.devices import Devices
from worker.training.weight_table import Weight

# Keras's defaults.
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7


class Adam:
    """Its moments are laid out like the weights."""

    def __init__(self, devices: Devices, table: Sequence[Weight], learning_rate: float) -> None:
        self._rate = learning_rate

        def zeros(weight: Weight, name: str) -> Any:
            return dtensor.DVariable(
                devices.by_model(np.zeros(weight.shape, np.float32), weight.cut), name=name
            )

        self.first = [zeros(weight, f"first_{number}") for number, weight in enumerate(table)]
        self.second = [zeros(weight, f"second_{number}") for number, weight in enumerate(table)]
        self.steps = dtensor.DVariable(devices.by_model(np.zeros((), np.int64), None), name="steps")

    def apply(self, gradients: Sequence[Any], weights: Sequence[Any]) -> None:
        """One step, within a tf.function.

        Each variable is read once and assigned what was computed from that: what is read after an assignment in the
        same function may be the value from before it, on a mesh of several devices (seen on TensorFlow 2.21).
        """
        steps = self.steps.read_value() + tf.constant(1, tf.int64)
        self.steps.assign(steps)
        step = tf.cast(steps, tf.float32)
        rate = self._rate * tf.sqrt(1.0 - tf.pow(BETA_2, step)) / (1.0 - tf.pow(BETA_1, step))
        slots = zip(gradients, weights, self.first, self.second, strict=True)
        for gradient, weight, first_slot, second_slot in slots:
            first, second = first_slot.read_value(), second_slot.read_value()
            first += (gradient - first) * (1.0 - BETA_1)
            second += (tf.square(gradient) - second) * (1.0 - BETA_2)
            first_slot.assign(first)
            second_slot.assign(second)
            weight.assign_sub(first * rate / (tf.sqrt(second) + EPSILON))
