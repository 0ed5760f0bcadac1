"""One step of training and one of evaluation on a mesh, as TensorFlow functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from worker.training.mesh.adam import Adam
from worker.training.mesh.devices import Array, Devices
from worker.training.mesh.network import Network


class Steps:
    """Takes whole batches as every process has them; each feeds its devices their part."""

    def __init__(self, devices: Devices, network: Network, adam: Adam) -> None:
        self._devices = devices
        self._network = network
        self._adam = adam
        self._loss = dtensor.DVariable(devices.by_model(np.zeros((), np.float32), None), name="loss")
        self._hits = dtensor.DVariable(devices.by_model(np.zeros((), np.float32), None), name="hits")
        self._seen = 0
        self._train: Any = tf.function(self._train_on)
        self._test: Any = tf.function(self._test_on)

    def train(self, images: Array, labels: Array) -> None:
        """Update the weights by one global batch, whose size the mesh's batch axis divides."""
        self._train(self._devices.by_batch(images), self._devices.by_batch(labels))
        self._seen += len(labels)

    def forget(self) -> None:
        """Begin the means of loss and accuracy anew."""
        zero = self._devices.by_model(np.zeros((), np.float32), None)
        self._loss.assign(zero)
        self._hits.assign(zero)
        self._seen = 0

    def values(self) -> Mapping[str, float]:
        """Mean loss and accuracy since then. It waits for this process's devices, not for the other processes."""
        seen = max(1, self._seen)
        return {
            "accuracy": float(self._hits.read_value().numpy()) / seen,
            "loss": float(self._loss.read_value().numpy()) / seen,
        }

    def test(self, images: Array, labels: Array, counted: Array) -> tuple[float, float]:
        """The sum of the losses and the number of hits over those examples whose `counted` (float32) is 1."""
        batch = self._devices.by_batch
        loss, hits = self._test(batch(images), batch(labels), batch(counted))
        return float(loss.numpy()), float(hits.numpy())

    def _train_on(self, images: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            logits = self._network.logits(images)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, self._network.weights)
        self._adam.apply(gradients, self._network.weights)
        self._loss.assign_add(tf.reduce_sum(losses))
        self._hits.assign_add(tf.reduce_sum(_hits(logits, labels)))

    def _test_on(self, images: Any, labels: Any, counted: Any) -> tuple[Any, Any]:
        logits = self._network.logits(images)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return tf.reduce_sum(losses * counted), tf.reduce_sum(_hits(logits, labels) * counted)


def _hits(logits: Any, labels: Any) -> Any:
    return tf.cast(tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels), tf.float32)
