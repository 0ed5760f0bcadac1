"""Trains and saves the variables of Keras 3 that a partitioner cuts into parts, over several parameter servers.

Keras's variable holds TensorFlow's `ShardedVariable` then, and layers read it as a whole; but it has no gradient, no
optimizer can update it and no checkpoint save it. Here its gradient is that of its parts, joined; an optimizer takes
each part for a variable, and so keeps its moments beside it; a checkpoint holds it whole, so that it can be read by
one process, or into another cut.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from .notices import Tell

KEY = "VARIABLE_VALUE"


def repair(keras: ModuleType, tell: Tell) -> None:
    """Repair the variables and the optimizers of the imported `keras`."""
    import keras.src.backend.tensorflow.core as core
    from keras.src.backend.tensorflow.optimizer import TFOptimizer
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    _differentiate(core.Variable)
    _save_whole(core.Variable)
    _build_by_parts(TFOptimizer, tell)
    _apply_by_parts(BaseOptimizer)


def is_cut(value: Any) -> bool:
    import tensorflow as tf

    return isinstance(value, tf.__internal__.distribute.ShardedVariable)


def partitioner_of(strategy: Any) -> Any:
    """What cuts the variables that are made under this strategy; None if nothing does, as under most."""
    return getattr(strategy.extended, "_variable_partitioner", None)


def parts_of(variable: Any) -> list[Any] | None:
    """TensorFlow's variables that are the parts of this one, Keras's or TensorFlow's own; None if it is not cut."""
    value = getattr(variable, "_value", variable)
    return list(value.variables) if is_cut(value) else None


def by_parts(variables: Sequence[Any]) -> list[Any]:
    """The same variables, in place of cut ones their parts."""
    return [part for variable in variables for part in parts_of(variable) or [variable]]


def _save_whole(variable_class: Any) -> None:
    """Let checkpoints save and restore cut variables of Keras's class as a whole."""
    save, restore = variable_class._serialize_to_tensors, variable_class._restore_from_tensors

    @functools.wraps(save)
    def serialize_to_tensors(self: Any) -> Any:
        return {KEY: whole(self._value)} if is_cut(self._value) else save(self)

    @functools.wraps(restore)
    def restore_from_tensors(self: Any, tensors: Any) -> Any:
        return self._value.assign(tensors[KEY]) if is_cut(self._value) else restore(self, tensors)

    variable_class._serialize_to_tensors = serialize_to_tensors
    variable_class._restore_from_tensors = restore_from_tensors


def whole(value: Any) -> Any:
    """The parts of a cut value put together, on the first one's server."""
    import tensorflow as tf

    with tf.device(value.variables[0].device):
        return tf.concat(value.variables, axis=0)


# -- gradients


def _differentiate(variable_class: Any) -> None:
    """A tape asks a variable for its handle: a cut one answers with itself, and TensorFlow is told what is in it."""
    import tensorflow as tf

    original = variable_class.handle
    sharded = tf.__internal__.distribute.ShardedVariable
    if not hasattr(sharded, "__composite_gradient__"):
        sharded.__composite_gradient__ = _gradient_of_parts()
    variable_class.handle = property(lambda self: self._value if is_cut(self._value) else original.fget(self))


def _gradient_of_parts() -> Any:
    from tensorflow.python.framework.composite_tensor_gradient import CompositeTensorGradient

    class GradientOfParts(CompositeTensorGradient):  # type: ignore[misc]
        def get_gradient_components(self, value: Any) -> list[Any]:
            return [part.handle for part in value.variables]

        def replace_gradient_components(self, value: Any, component_grads: Sequence[Any]) -> Any:
            return _joined(value.variables, component_grads)

    return GradientOfParts()


def _joined(parts: Sequence[Any], gradients: Sequence[Any]) -> Any:
    """The gradient of the whole; None if it has none."""
    import tensorflow as tf

    if all(gradient is None for gradient in gradients):
        return None
    if all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
        return _joined_slices(parts, gradients)
    return tf.concat(
        [
            tf.zeros(part.shape, part.dtype) if gradient is None else tf.convert_to_tensor(gradient)
            for part, gradient in zip(parts, gradients, strict=True)
        ],
        axis=0,
    )


def _joined_slices(parts: Sequence[Any], gradients: Sequence[Any]) -> Any:
    import tensorflow as tf

    indices, first = [], 0
    for part, gradient in zip(parts, gradients, strict=True):
        indices.append(gradient.indices + tf.cast(first, gradient.indices.dtype))
        first += int(part.shape[0])
    values = tf.concat([gradient.values for gradient in gradients], axis=0)
    return tf.IndexedSlices(values, tf.concat(indices, axis=0), dense_shape=(first, *parts[0].shape[1:]))


# -- optimizers


def _build_by_parts(optimizer_class: Any, tell: Tell) -> None:
    """Each kind of optimizer has a `build` of its own; what it is given is what all have in common."""
    original = optimizer_class.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if partitioner_of(self._distribution_strategy) is None:
            return
        build = self.build

        @functools.wraps(build)
        def build_by_parts(variables: Any) -> None:
            if any(parts_of(variable) for variable in variables):
                tell("cannot train variables that a partitioner cuts")
            build(by_parts(variables))

        self.build = build_by_parts

    optimizer_class.__init__ = init


def _apply_by_parts(optimizer_class: Any) -> None:
    original = optimizer_class.apply

    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if trainable_variables is None:
            return original(self, grads)
        variables = list(trainable_variables)
        cut = [variable for variable in variables if parts_of(variable)]
        if not cut:
            return original(self, grads, variables)
        gradients = [
            part
            for gradient, variable in zip(grads, variables, strict=True)
            for part in _split(gradient, variable)
        ]
        result = original(self, gradients, by_parts(variables))
        for variable in cut:
            # Of the whole, which its parts know nothing of.
            if getattr(variable, "constraint", None) is not None:
                variable.assign(variable.constraint(variable))
        return result

    optimizer_class.apply = apply


def _split(gradient: Any, variable: Any) -> list[Any]:
    """The gradients of a variable's parts, or of itself if it is not cut."""
    import tensorflow as tf

    parts = parts_of(variable)
    if parts is None:
        return [gradient]
    if gradient is None:
        return [None] * len(parts)
    if isinstance(gradient, tf.IndexedSlices):
        slices = getattr(variable, "_value", variable)._decompose_indexed_slices(gradient)
        return [
            tf.IndexedSlices(one.values, one.indices, dense_shape=part.shape)
            for one, part in zip(slices, parts, strict=True)
        ]
    return list(tf.split(gradient, [int(part.shape[0]) for part in parts], axis=0))
