"""Makes Keras 3's `fit` work with several workers, by replacing what is broken in it for this process only.

Two faults of keras/src/backend/tensorflow/trainer.py make fit, evaluate and train_on_batch fail under
MultiWorkerMirroredStrategy with two workers or more (https://github.com/keras-team/keras/issues/20585):

- building: `_maybe_symbolic_build` reduces the first batch over the workers although it needs its shapes
  alone, and a batch made for several workers cannot be reduced;
- reducing: `reduce_per_replica` takes the mean of scalars, the losses and metrics, along axis 0, which they
  do not have.

Importing this module imports the standard library only, so it can be brought into any script.
"""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import is_known
from .clusters import first_local, spans_workers
from .datasets import replace_epoch_iterator
from .functions import replace_make_function, replace_predict_on_batch
from .metrics import replace_assign, replace_metrics_result
from .steps import replace_train_step

UPSTREAM = "keras-team/keras#20585"


class Fault(enum.Enum):
    """What is broken in a Keras trainer module."""

    BUILDING = "building"
    REDUCING = "reducing"


def repair(keras: ModuleType, workers: int) -> str | None:
    """Repair the trainer of the imported `keras`; what was repaired, None if it needs nothing."""
    import keras.src.backend.tensorflow.trainer as trainer

    faults = find_faults(keras.__version__, trainer)
    if Fault.BUILDING in faults:
        _fix_building(trainer)
    if Fault.REDUCING in faults:
        _fix_reducing(trainer)
    if faults:
        import keras.src.backend.tensorflow.core as core
        import keras.src.trainers.trainer as base_trainer

        replace_train_step(trainer)
        replace_metrics_result(base_trainer)
        replace_assign(core)
        replace_make_function(trainer)
        replace_predict_on_batch(trainer)
        replace_epoch_iterator(trainer)
    return f"fit and evaluate ({UPSTREAM})" if faults else None


def find_faults(version: str, trainer: ModuleType) -> frozenset[Fault]:
    """The faults found in the source of Keras `version`'s trainer module; none outside the known versions."""
    if not is_known(version):
        return frozenset()
    faults = set()
    building = getattr(getattr(trainer, "TensorFlowTrainer", None), "_maybe_symbolic_build", None)
    if any(_is_mean(call) for call in _calls(building)):
        faults.add(Fault.BUILDING)
    reducing = getattr(trainer, "reduce_per_replica", None)
    if any(_is_mean(call) and _axis(call) == 0 for call in _calls(reducing)):
        faults.add(Fault.REDUCING)
    return frozenset(faults)


def _calls(function: Callable[..., object] | None) -> list[ast.Call]:
    """Every call in a function's source; none when it has no source to read."""
    if function is None:
        return []
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _is_mean(call: ast.Call) -> bool:
    """Whether it is `<something>.reduce("MEAN", ...)`."""
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "reduce"
        and bool(call.args)
        and isinstance(call.args[0], ast.Constant)
        and call.args[0].value == "MEAN"
    )


def _axis(call: ast.Call) -> object:
    for keyword in call.keywords:
        if keyword.arg == "axis" and isinstance(keyword.value, ast.Constant):
            return keyword.value.value
    return None


def _fix_building(trainer: Any) -> None:
    """Build from the shapes and types of one worker's share of a batch, without taking one."""
    original = trainer.TensorFlowTrainer._maybe_symbolic_build

    @functools.wraps(original)
    def build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        strategy = self._distribute_strategy
        if iterator is None or strategy is None or not spans_workers(strategy):
            original(self, iterator=iterator, data_batch=data_batch)
            return
        original(self, data_batch=trainer.tree.map_structure(_local_spec, _spec(iterator)))

    trainer.TensorFlowTrainer._maybe_symbolic_build = build


def _spec(epoch_iterator: Any) -> Any:
    return epoch_iterator._distributed_dataset.element_spec


def _local_spec(spec: Any) -> Any:
    """What one replica gets: `spec` itself, or its first part where a worker has several replicas."""
    return spec._value_specs[0] if hasattr(spec, "_value_specs") else spec


def _fix_reducing(trainer: Any) -> None:
    """Reduce over the workers without an axis, the values being one scalar a worker; one collective in all."""
    original = trainer.reduce_per_replica

    @functools.wraps(original)
    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        operation = {"auto": "MEAN", "mean": "MEAN", "sum": "SUM"}.get(reduction)
        if operation is None or not spans_workers(strategy):
            return original(values, strategy, reduction)
        return _reduce(values, strategy, operation, trainer.tree)

    trainer.reduce_per_replica = reduce_per_replica


def _reduce(values: Any, strategy: Any, operation: str, tree: Any) -> Any:
    import tensorflow as tf

    flat = [tf.convert_to_tensor(v) if isinstance(v, int | float) else v for v in tree.flatten(values)]
    groups: dict[Any, list[int]] = {}
    for index, value in enumerate(flat):
        here = first_local(strategy, value)
        if (kind := _number_type(here)) is None:
            flat[index] = here
        else:
            groups.setdefault(kind, []).append(index)
    before: list[Any] = []
    for indices in groups.values():
        parts = [flat[index] for index in indices]

        def pack(some: list[Any]) -> Any:
            return tf.concat([tf.reshape(value, [-1]) for value in some], axis=0)

        shapes = [tf.shape(first_local(strategy, part)) for part in parts]
        # One after the other, in the same order on all workers.
        with tf.control_dependencies(before):
            packed = strategy.reduce(operation, strategy.run(pack, args=(parts,)), axis=None)
        before = [packed]
        sizes = [tf.reduce_prod(shape) for shape in shapes]
        for index, part, shape in zip(indices, tf.split(packed, sizes), shapes, strict=True):
            flat[index] = tf.ensure_shape(tf.reshape(part, shape), first_local(strategy, flat[index]).shape)
    return tree.pack_sequence_as(values, flat)


def _number_type(value: Any) -> Any:
    """The type of a dense tensor of numbers; None for anything else, which has no mean over the workers."""
    import tensorflow as tf

    if not hasattr(value, "dtype") or isinstance(value, tf.SparseTensor | tf.RaggedTensor | tf.IndexedSlices):
        return None
    kind = tf.as_dtype(value.dtype)
    return kind if kind.is_floating or kind.is_integer else None
