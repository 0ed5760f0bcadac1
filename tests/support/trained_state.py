"""Compares what two trainings left: all the numbers in their checkpoints."""

from __future__ import annotations

from pathlib import Path

# Difference by another order of sums in equal trainings. On one machine they are equal to the last bit.
RELATIVE, ABSOLUTE = 1e-4, 1e-5
_STRUCTURE = "_CHECKPOINTABLE_OBJECT_GRAPH"


def assert_same_training(checkpoint: Path, other: Path) -> None:
    """Weights, optimizer and counters of both TensorFlow checkpoints are equal."""
    import numpy as np
    import tensorflow as tf

    readers = [tf.train.load_checkpoint(str(path)) for path in (checkpoint, other)]
    names = [{*reader.get_variable_to_shape_map()} - {_STRUCTURE} for reader in readers]
    assert names[0] == names[1] != set()
    for name in sorted(names[0]):
        one, two = (reader.get_tensor(name) for reader in readers)
        np.testing.assert_allclose(one, two, rtol=RELATIVE, atol=ABSOLUTE, err_msg=name)
