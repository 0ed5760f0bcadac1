"""A mesh of devices, and the network, Adam and the steps on it: the same numbers as the Keras model's."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.experimental import dtensor

from worker.bootstrap.tensorflow_settings import MESH, REPLICAS, configure_devices
from worker.training.process.environment import Place, UsageError
from worker.training.process.output import counted
from worker.training.weights import POOL, Weight

BATCH, MODEL = "batch", "model"
Array = npt.NDArray[Any]
# Adam's constants, Keras's defaults.
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7


def devices_per_process(mesh: tuple[int, int], processes: int) -> int:
    """Return how many of the mesh's devices each process has; UsageError if the number is not the same for all."""
    batch, model = mesh
    if batch * model % processes:
        raise UsageError(
            f"--mesh batch={batch},model={model} has {counted(batch * model, 'device')}, which {processes} processes "
            "cannot share equally: take a number of workers that divides it"
        )
    return batch * model // processes


def set_dtensor_variables(place: Place, environment: MutableMapping[str, str]) -> None:
    """Describe the other processes to DTensor, if only TF_CONFIG does so."""
    if environment.get("DTENSOR_JOBS"):
        return
    # DTensor would read an empty list as one process without an address.
    environment.pop("DTENSOR_JOBS", None)
    if place.workers == 1:
        return
    environment["DTENSOR_CLIENT_ID"] = str(place.rank)
    environment["DTENSOR_NUM_CLIENTS"] = str(place.workers)
    environment["DTENSOR_JOB_NAME"] = "worker"
    environment["DTENSOR_JOBS"] = ",".join(place.addresses)


class Devices:
    """The devices of a mesh of batch x model over all processes; each process feeds its own."""

    def __init__(self, mesh: Any) -> None:
        self.mesh = mesh
        self.batch = int(mesh.dim_size(BATCH))
        self.model = int(mesh.dim_size(MODEL))
        self._here: list[tuple[int, int]] = [
            (int(where[BATCH]), int(where[MODEL])) for where in mesh.local_device_locations()
        ]

    @classmethod
    def join(cls, mesh: tuple[int, int], place: Place) -> Devices:
        """Return the mesh after all processes are there. TensorFlow's devices must not have been used before."""
        here = devices_per_process(mesh, place.workers)
        set_dtensor_variables(place, os.environ)
        kind = _prepare(mesh, here)
        dtensor.initialize_accelerator_system(kind)
        batch, model = mesh
        return cls(dtensor.create_distributed_mesh([(BATCH, batch), (MODEL, model)], device_type=kind))

    def replicated_layout(self, rank: int) -> Any:
        return dtensor.Layout.replicated(self.mesh, rank)

    def layout(self, rank: int, axis: int | None, by: str) -> Any:
        """Return the layout that cuts `axis` along the mesh's axis `by`; replicated if `axis` is None."""
        if axis is None:
            return self.replicated_layout(rank)
        return dtensor.Layout.batch_sharded(self.mesh, by, rank, axis)

    def split_by_model(self, array: Array, axis: int | None) -> Any:
        """Return a DTensor with `axis` cut along the model axis; each device gets only its part."""
        parts = [
            array if axis is None else np.split(array, self.model, axis)[model] for _, model in self._here
        ]
        # Copied, because tensors may share the array's memory, and two variables would update the same numbers.
        own = [tf.constant(np.array(part)) for part in parts]
        return dtensor.pack(own, self.layout(array.ndim, axis, MODEL))

    def variable(self, value: Array, axis: int | None, name: str) -> Any:
        """Return a DTensor variable that is cut as by `split_by_model`."""
        return dtensor.DVariable(self.split_by_model(value, axis), name=name)

    def split_by_batch(self, array: Array) -> Any:
        """Return a DTensor of examples (n, ...), n a multiple of the batch axis. All processes pass the same array."""
        share = len(array) // self.batch
        parts = [array[batch * share : (batch + 1) * share] for batch, _ in self._here]
        return dtensor.pack([tf.constant(part) for part in parts], self.layout(array.ndim, 0, BATCH))

    def broadcast_from_chief(self, number: int, place: Place) -> int:
        """Return the chief's `number` in every process; all must call it, and the others' `number` is ignored."""
        parts = [
            np.full((1, 1), number if place.is_chief and not i else 0, np.int32)
            for i in range(len(self._here))
        ]
        layout = dtensor.Layout([BATCH, MODEL], self.mesh)
        total = tf.function(tf.reduce_sum)(dtensor.pack([tf.constant(part) for part in parts], layout))
        return int(total.numpy())


def _prepare(mesh: tuple[int, int], here: int) -> str:
    """Configure `here` devices in this process and return their type."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        if len(gpus) < here:
            raise UsageError(
                f"the mesh needs {counted(here, 'device')} in each process, and this one sees "
                f"{counted(len(gpus), 'GPU')}: take a smaller --mesh or more --workers, or run it on CPUs by "
                "--gpus none"
            )
        tf.config.set_visible_devices(gpus[:here], "GPU")
    batch, model = mesh
    configure_devices(tf, {**os.environ, REPLICAS: "", MESH: f"{BATCH}={batch},{MODEL}={model}"})
    return "GPU" if gpus else "CPU"


class Network:
    """The forward pass. Created from the initial values of the weights, in the order of the table."""

    def __init__(self, devices: Devices, table: Sequence[Weight], values: Sequence[Array]) -> None:
        self.weights: list[Any] = [
            devices.variable(value, weight.cut, f"weight_{number}")
            for number, (weight, value) in enumerate(zip(table, values, strict=True))
        ]

    def logits(self, images: Any) -> Any:
        """Return logits (n, classes) for images (n, height, width, channels), both cut by batch; for a tf.function."""
        filters1, bias1, filters2, bias2, dense, dense_bias, out, out_bias = self.weights
        hidden = _convolve(_convolve(images, filters1, bias1), filters2, bias2)
        hidden = tf.reshape(hidden, [hidden.shape[0], -1])
        hidden = tf.nn.relu(tf.matmul(hidden, dense) + dense_bias)
        return tf.matmul(hidden, out) + out_bias


def _convolve(images: Any, filters: Any, bias: Any) -> Any:
    hidden = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(images, filters, 1, "SAME"), bias))
    return tf.nn.max_pool2d(hidden, POOL, POOL, "VALID")


class Adam:
    """Adam, as keras.optimizers.Adam. Each device updates its part of the weights; the moments have the same layout."""

    def __init__(self, devices: Devices, table: Sequence[Weight], learning_rate: float) -> None:
        self._rate = learning_rate
        self.first, self.second = (
            [
                devices.variable(np.zeros(weight.shape, np.float32), weight.cut, f"{moment}_{number}")
                for number, weight in enumerate(table)
            ]
            for moment in ("first", "second")
        )
        self.steps = devices.variable(np.zeros((), np.int64), None, "steps")

    def apply(self, gradients: Sequence[Any], weights: Sequence[Any]) -> None:
        """Make one step, inside a tf.function.

        Each variable is read once, before it is assigned. On a mesh of several devices a read after an assignment in
        the same function may return the old value (seen on TensorFlow 2.21).
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


class Steps:
    """The training and evaluation steps. Every process passes the whole batch and feeds its devices their part."""

    def __init__(self, devices: Devices, network: Network, adam: Adam) -> None:
        self._devices = devices
        self._network = network
        self._adam = adam
        self._loss = devices.variable(np.zeros((), np.float32), None, "loss")
        self._hits = devices.variable(np.zeros((), np.float32), None, "hits")
        self._seen = 0
        self._train: Any = tf.function(self._train_on)
        self._test: Any = tf.function(self._test_on)

    def train(self, images: Array, labels: Array) -> None:
        """Train on one global batch, whose size must be a multiple of the mesh's batch axis."""
        self._train(self._devices.split_by_batch(images), self._devices.split_by_batch(labels))
        self._seen += len(labels)

    def reset_means(self) -> None:
        zero = self._devices.split_by_model(np.zeros((), np.float32), None)
        self._loss.assign(zero)
        self._hits.assign(zero)
        self._seen = 0

    def means(self) -> Mapping[str, float]:
        """Return mean loss and accuracy since the reset. Waits for this process's devices, not for other processes."""
        seen = max(1, self._seen)
        return {
            "accuracy": float(self._hits.read_value().numpy()) / seen,
            "loss": float(self._loss.read_value().numpy()) / seen,
        }

    def test(self, images: Array, labels: Array, weights: Array) -> tuple[float, float]:
        """Return the sum of the losses and the number of hits over the examples with `weights` (float32) 1, not 0."""
        batch = self._devices.split_by_batch
        loss, hits = self._test(batch(images), batch(labels), batch(weights))
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

    def _test_on(self, images: Any, labels: Any, weights: Any) -> tuple[Any, Any]:
        logits = self._network.logits(images)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return tf.reduce_sum(losses * weights), tf.reduce_sum(_hits(logits, labels) * weights)


def _hits(logits: Any, labels: Any) -> Any:
    return tf.cast(tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels), tf.float32)
