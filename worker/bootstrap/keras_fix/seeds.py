"""Lets every worker draw random numbers of its own in a training step, where Keras has all draw the same.

A `keras.random.SeedGenerator` (of Dropout, noise and augmentation layers) keeps its state in a variable, and
variables start with the chief's value on all workers. So all would drop the same units of their different
examples. Here a replica's number goes into each seed it draws: replica 0 draws as it always did, the others
differently, and all of it again in the next run when seeds are set. Initial values are not drawn in a replica.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from .clusters import replica_context

# Odd and large, so that no two replicas meet in seeds that a script gives to its layers (1, 2, 3, ...).
_APART = 0x3C6EF372_5A1B


def repair(keras: ModuleType, workers: int) -> str | None:
    """Let seeds depend on the replica that draws them."""
    from keras.src.random import seed_generator

    original = seed_generator.SeedGenerator.next

    @functools.wraps(original)
    def next_seed(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _of_this_replica(original(self, *args, **kwargs))

    seed_generator.SeedGenerator.next = next_seed
    return "random numbers that differ between workers"


def _of_this_replica(seed: Any) -> Any:
    context = replica_context()
    if context is None:
        return seed
    import tensorflow as tf

    replica = tf.cast(context.replica_id_in_sync_group, seed.dtype)
    return seed + tf.stack([replica * tf.constant(_APART, seed.dtype), tf.zeros([], seed.dtype)])
