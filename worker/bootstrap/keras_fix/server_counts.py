"""Lets workers that share parameter servers add to a variable at once, so that no addition is lost.

Keras 3's `variable.assign_add` reads, adds and writes: what another worker adds meanwhile is gone (of 900 steps of two
workers an optimizer counted 707, and its metrics as few). TensorFlow's own adds on the server, in one operation.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from .notices import Tell


def repair(keras: ModuleType, tell: Tell) -> None:
    """Repair the variables of the imported `keras` that lie on parameter servers."""
    import keras.src.backend.tensorflow.core as core

    for name in ("assign_add", "assign_sub"):
        _add_on_the_server(core.Variable, name, tell)


def _add_on_the_server(variable_class: Any, name: str, tell: Tell) -> None:
    import tensorflow as tf
    from keras.src.backend.common.stateless_scope import in_stateless_scope

    original = getattr(variable_class, name)

    @functools.wraps(original)
    def add(self: Any, value: Any) -> Any:
        kept = self._value
        if in_stateless_scope() or not _is_on_a_server(kept) or isinstance(value, tf.IndexedSlices):
            return original(self, value)
        tell("loses steps and metrics that workers of parameter servers count at once")
        added = tf.cast(value, kept.dtype)
        if added.shape != kept.shape:
            added = tf.broadcast_to(added, kept.shape)
        getattr(kept, name)(added)
        return tf.convert_to_tensor(kept)

    setattr(variable_class, name, add)


def _is_on_a_server(variable: Any) -> bool:
    import tensorflow as tf

    first = getattr(variable, "variables", [variable])[0]
    return isinstance(first, tf.Variable) and "/job:ps/" in first.device
