"""The network's forward pass on a mesh, its weights DTensor variables; the same numbers as the Keras model's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from worker.training.mesh.devices import Array, Devices
from worker.training.weight_table import POOL, Weight


class Network:
    """Made from the weights' first values, in the table's order."""

    def __init__(self, devices: Devices, table: Sequence[Weight], values: Sequence[Array]) -> None:
        self.weights: list[Any] = [
            dtensor.DVariable(devices.by_model(value, weight.cut), name=f"weight_{number}")
            for number, (weight, value) in enumerate(zip(table, values, strict=True))
        ]

    def logits(self, images: Any) -> Any:
        """(n, classes) of images (n, height, width, channels); inside a tf.function, both cut by the batch axis."""
        filters1, bias1, filters2, bias2, dense, dense_bias, out, out_bias = self.weights
        hidden = _convolved(_convolved(images, filters1, bias1), filters2, bias2)
        hidden = tf.reshape(hidden, [hidden.shape[0], -1])
        hidden = tf.nn.relu(tf.matmul(hidden, dense) + dense_bias)
        return tf.matmul(hidden, out) + out_bias


def _convolved(images: Any, filters: Any, bias: Any) -> Any:
    found = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(images, filters, 1, "SAME"), bias))
    return tf.nn.max_pool2d(found, POOL, POOL, "VALID")
