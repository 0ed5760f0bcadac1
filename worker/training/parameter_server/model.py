"""The model and its variables on the parameter servers, and the copy in this process that is exported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from worker.bootstrap.keras_fix.variables import add_on_servers, is_cut, train_cut_variables
from worker.training.job import Job
from worker.training.network import build_network, keras

# Bytes. A smaller part does not pay for the request to another server.
SMALLEST_PART_BYTES = 16 * 1024
# Steps per call of a worker, at most. Each call costs a round trip through the chief.
MOST_STEPS_PER_CALL = 8


def make_partitioner(name: str, servers: int) -> Any:
    """Return the partitioner, None for `none`, which places each variable on one server.

    `min-size` cuts along the first axis into at most one part per server, none below 16 KiB; `fixed` into one part per
    server.
    """
    partitioners = tf.distribute.experimental.partitioners
    match name:
        case "min-size":
            return partitioners.MinSizePartitioner(min_shard_bytes=SMALLEST_PART_BYTES, max_shards=servers)
        case "fixed":
            return partitioners.FixedShardsPartitioner(servers)
    return None


def make_model(job: Job, strategy: Any, workers: int) -> Any:
    """Return the compiled model, with its variables and the optimizer's on the parameter servers.

    A step is the batch of one worker, so the learning rate does not grow with the number of workers.
    """
    keras.utils.set_random_seed(job.options.seed)
    if job.options.loop == "custom":
        # tf_keras has neither fault.
        for fix in (add_on_servers, train_cut_variables):
            fix(keras, report=lambda fault: None)
    with strategy.scope():
        model = _build(job)
        _compile(job, model, steps_per_call(job.steps, workers) if job.options.loop == "fit" else 1)
        # The slots must exist before a checkpoint is restored into them.
        model.optimizer.build(model.trainable_variables)
    if job.options.summary:
        model.summary()
    return model


def copy_to_host(job: Job, model: Any) -> Any:
    """Return an ordinary model in this process with the weights of `model`, and a new optimizer."""
    copy = _build(job)
    _compile(job, copy, 1)
    parts = iter(model.get_weights())
    copy.set_weights([_join_parts(parts, weight.shape) for weight in copy.weights])
    return copy


def _join_parts(parts: Iterator[Any], shape: Sequence[int]) -> Any:
    """Return the next weight of that shape: tf_keras returns the parts of a cut weight one after the other."""
    weight = next(parts)
    while weight.shape != tuple(shape):
        weight = np.concatenate([weight, next(parts)])
    return weight


def _build(job: Job) -> Any:
    return build_network(job.dataset.image_shape, job.dataset.classes, job.options.width)


def _compile(job: Job, model: Any, steps_per_execution: int) -> None:
    model.compile(
        optimizer=keras.optimizers.Adam(job.options.learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution,
    )


def steps_per_call(steps: int, workers: int) -> int:
    """Return the most steps per call with which the workers share an epoch evenly and no step is left over."""
    candidates = range(MOST_STEPS_PER_CALL, 0, -1)
    return next(
        many for many in candidates if many == 1 or (steps % many == 0 and steps // many >= 2 * workers)
    )


def make_uncut_variable(value: Any) -> Any:
    """Return a variable on the first parameter server, which no partitioner cuts."""
    with tf.device("/job:ps/replica:0/task:0/device:CPU:0"):
        return tf.Variable(value, trainable=False)


def count_by_server(model: Any) -> dict[str, int]:
    """Return how many trained numbers each parameter server holds, by its task's name."""
    held: dict[str, int] = {}
    for variable in model.trainable_variables:
        for part in _parts(variable):
            device = tf.DeviceSpec.from_string(part.device)
            task = f"{device.job}:{device.task}"
            held[task] = held.get(task, 0) + int(part.shape.num_elements())
    return dict(sorted(held.items()))


def find_shape_mismatch(model: Any) -> str | None:
    """Return the first variable of the model or its optimizer that holds a value of another shape than its own.

    A variable on another host accepts any shape from a checkpoint; this happens if the variables were cut differently.
    """
    for variable in (*model.variables, *model.optimizer.variables):
        for part in _parts(variable):
            held = tf.raw_ops.VariableShape(input=part.handle).numpy().tolist()
            if held != part.shape.as_list():
                return f"{part.name} is {held} there and {part.shape.as_list()} here"
    return None


def _parts(variable: Any) -> list[Any]:
    """Return the TensorFlow variables of a Keras 3 or tf_keras variable, cut or not."""
    value = variable if is_cut(variable) or isinstance(variable, tf.Variable) else variable.value
    return list(value.variables) if is_cut(value) else [value]
