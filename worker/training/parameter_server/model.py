"""The model of a training with parameter servers: on them, and as an ordinary one to be saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from worker.training.job import Job
from worker.training.model import build_network
from worker.training.parameter_server.creator_fit import steps_at_once
from worker.training.parameter_server.variables import make_savable, trained_variables
from worker.training.which_keras import load_keras


def make_model(job: Job, strategy: Any, workers: int) -> Any:
    """Compiled, its variables and the optimizer's on the parameter servers.

    A step is one worker's batch, so the learning rate is one worker's too: more of them do not make it grow.
    """
    load_keras().utils.set_random_seed(job.options.seed)
    with strategy.scope():
        model = _network(job)
        _compile(job, model, steps_at_once(job.steps, workers) if job.options.loop == "fit" else 1)
        if job.options.loop == "custom":
            model.optimizer.build(trained_variables(model))
            make_savable(model)
        else:
            # tf_keras knows cut variables itself. The slots must exist before a checkpoint is restored into them.
            model.optimizer.build(model.trainable_variables)
    if job.options.summary:
        model.summary()
    return model


def whole_copy(job: Job, model: Any) -> Any:
    """An ordinary model in this process with the weights of `model`; the optimizer begins anew."""
    copy = _network(job)
    _compile(job, copy, 1)
    parts = iter(model.get_weights())
    copy.set_weights([_whole(parts, weight.shape) for weight in copy.weights])
    return copy


def _whole(parts: Iterator[Any], shape: Sequence[int]) -> Any:
    """The next weight of that shape: tf_keras gives the parts of a cut one, one after the other."""
    found = next(parts)
    while found.shape != tuple(shape):
        found = np.concatenate([found, next(parts)])
    return found


def _network(job: Job) -> Any:
    height, width, channels = job.dataset.image_shape
    return build_network((height, width, channels), job.dataset.classes, job.options.width)


def _compile(job: Job, model: Any, steps_at_once: int) -> None:
    keras = load_keras()
    model.compile(
        optimizer=keras.optimizers.Adam(job.options.learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=steps_at_once,
    )
