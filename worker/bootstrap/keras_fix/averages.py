"""Averages over the workers what layers gather from their own examples: BatchNormalization's moving statistics.

In Keras 3 those are plain variables of each worker, so the workers' models drift apart, and what the chief
saves has seen its part of the data only. They are linear in what each step adds, so averaging them now and
then gives the same as averaging in every step. It is done where all workers take part, never when they are
read: a read by the chief alone would wait for ever.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from .clusters import spans_workers, sum_now

# Their state does not come from the examples of a step, or is the same on all workers anyhow.
_NOT_OF_EXAMPLES = ("Normalization", "SpectralNormalization", "Discretization", "Embedding")


def repair(keras: ModuleType, workers: int) -> str | None:
    """Average at the end of every epoch, before each evaluate and predict, and after each train_on_batch."""
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer as Trainer

    fit, evaluate, predict = Trainer.fit, Trainer.evaluate, Trainer.predict
    train_on_batch, test_on_batch = Trainer.train_on_batch, Trainer.test_on_batch
    results = Trainer._get_metrics_result_or_logs

    @functools.wraps(fit)
    def averaging_fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        around = getattr(self, "_orch_epoch_ends", False)  # a callback of another fit's may call this one
        self._orch_epoch_ends = True
        try:
            return fit(self, *args, **kwargs)
        finally:
            self._orch_epoch_ends = around

    # Called once an epoch, after its steps and before validation and the callbacks; and in evaluate.
    @functools.wraps(results)
    def averaging_results(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "_orch_epoch_ends", False):
            average(self)
        return results(self, *args, **kwargs)

    @functools.wraps(evaluate)
    def averaging_evaluate(self: Any, *args: Any, **kwargs: Any) -> Any:
        within = getattr(self, "_orch_epoch_ends", False)
        if not (within and kwargs.get("_use_cached_eval_dataset")):
            average(self)
        self._orch_epoch_ends = False
        try:
            return evaluate(self, *args, **kwargs)
        finally:
            self._orch_epoch_ends = within

    def averaging_before(method: Any) -> Any:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            average(self)
            return method(self, *args, **kwargs)

        return call

    @functools.wraps(train_on_batch)
    def averaging_train_on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        logs = train_on_batch(self, *args, **kwargs)
        average(self)
        return logs

    Trainer.fit = averaging_fit
    Trainer._get_metrics_result_or_logs = averaging_results
    Trainer.evaluate = averaging_evaluate
    Trainer.predict = averaging_before(predict)
    Trainer.test_on_batch = averaging_before(test_on_batch)
    Trainer.train_on_batch = averaging_train_on_batch
    return "BatchNormalization's statistics"


def average(model: Any) -> None:
    """Make the model's gathered statistics the mean of all workers', in one collective; every worker must call
    it. Nothing for a model without any, or outside of several workers."""
    strategy = model.distribute_strategy
    if not spans_workers(strategy) or not _between_steps():
        return
    variables = gathered_state(model)
    if not variables:
        return
    import tensorflow as tf

    wide = tf.float64 if any(variable.dtype == "float64" for variable in variables) else tf.float32
    mine = tf.concat([tf.reshape(_local_mean(strategy, variable, wide), [-1]) for variable in variables], 0)
    mean = sum_now(strategy, mine) / strategy.extended._num_workers
    sizes = [math.prod(variable.shape) for variable in variables]
    for variable, part in zip(variables, tf.split(mean, sizes), strict=True):
        variable.assign(tf.cast(tf.reshape(part, variable.shape), variable.dtype))


def gathered_state(model: Any) -> list[Any]:
    """The variables of the model's layers that are neither trained nor equal on all workers, in its order."""
    found: dict[int, Any] = {}
    for layer in model._flatten_layers(include_self=True, recursive=True):
        if not layer.trainable or _is_apart(layer):
            continue
        for variable in layer._non_trainable_variables:
            # Other aggregations are carried out by TensorFlow in every step.
            if variable.aggregation == "none" and "float" in str(variable.dtype):
                found[id(variable)] = variable
    return list(found.values())


def _is_apart(layer: Any) -> bool:
    names = {kind.__name__ for kind in type(layer).__mro__ if kind.__module__.startswith("keras.src.layers.")}
    return not names.isdisjoint(_NOT_OF_EXAMPLES)


def _local_mean(strategy: Any, variable: Any, dtype: Any) -> Any:
    import tensorflow as tf

    locals_: Sequence[Any] = strategy.experimental_local_results(variable.value)
    return tf.add_n([tf.cast(one, dtype) for one in locals_]) / len(locals_)


def _between_steps() -> bool:
    import tensorflow as tf

    if not tf.executing_eagerly():
        return False
    return bool(tf.distribute.in_cross_replica_context()) or not tf.distribute.has_strategy()
