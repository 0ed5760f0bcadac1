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
import re
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

# Keras 2 has another trainer. From the upper bound on nobody has looked yet: there the fix stays off.
FIRST_BROKEN = (3, 0)
FIRST_UNKNOWN = (3, 16)
UPSTREAM = "keras-team/keras#20585"
_DONE = "_orch_multi_worker_fix"


class Fault(enum.Enum):
    """What is broken in a Keras trainer module."""

    BUILDING = "building"
    REDUCING = "reducing"


def fix_multi_worker_fit(workers: int) -> str | None:
    """Repair the installed Keras for a cluster of `workers` if it needs it; one line to log, else None.

    Imports Keras (and with it TensorFlow) when there are two workers or more. Calling it again changes
    nothing.
    """
    if workers < 2:
        return None
    import keras

    if keras.backend.backend() != "tensorflow":
        return None
    import keras.src.backend.tensorflow.trainer as trainer

    faults = find_faults(keras.__version__, trainer)
    if not faults or hasattr(trainer, _DONE):
        return None
    if Fault.BUILDING in faults:
        _fix_building(trainer)
    if Fault.REDUCING in faults:
        _fix_reducing(trainer)
    setattr(trainer, _DONE, True)
    return (
        f"worker: Keras {keras.__version__} multi-worker fit is broken ({UPSTREAM}); fixed for this process"
    )


def find_faults(version: str, trainer: ModuleType) -> frozenset[Fault]:
    """The faults found in the source of Keras `version`'s trainer module; none outside the known versions."""
    if not FIRST_BROKEN <= parse_version(version) < FIRST_UNKNOWN:
        return frozenset()
    faults = set()
    building = getattr(getattr(trainer, "TensorFlowTrainer", None), "_maybe_symbolic_build", None)
    if any(_is_mean(call) for call in _calls(building)):
        faults.add(Fault.BUILDING)
    reducing = getattr(trainer, "reduce_per_replica", None)
    if any(_is_mean(call) and _axis(call) == 0 for call in _calls(reducing)):
        faults.add(Fault.REDUCING)
    return frozenset(faults)


def parse_version(version: str) -> tuple[int, int]:
    """Major and minor of a version such as 3.15.1 or 3.9.0.dev2024; (0, 0) when it has none."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


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


def _spans_workers(strategy: Any) -> bool:
    import tensorflow as tf

    # The public way to ask, `cluster_resolver`, is set without TF_CONFIG too.
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and bool(
        strategy.extended._in_multi_worker_mode()
    )


def _fix_building(trainer: Any) -> None:
    """Build from this worker's own part of the first batch: its shapes and types are what is needed."""
    original = trainer.TensorFlowTrainer._maybe_symbolic_build

    @functools.wraps(original)
    def build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        strategy = self._distribute_strategy
        if iterator is None or strategy is None or not _spans_workers(strategy):
            original(self, iterator=iterator, data_batch=data_batch)
            return
        _, _, batches = next(iter(iterator))
        local = trainer.tree.map_structure(
            lambda part: strategy.experimental_local_results(part)[0], next(batches)
        )
        original(self, data_batch=local)

    trainer.TensorFlowTrainer._maybe_symbolic_build = build


def _fix_reducing(trainer: Any) -> None:
    """Reduce over the workers without an axis, the values being one scalar a worker."""
    original = trainer.reduce_per_replica

    @functools.wraps(original)
    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        operation = {"auto": "MEAN", "mean": "MEAN", "sum": "SUM"}.get(reduction)
        if operation is None or not _spans_workers(strategy):
            return original(values, strategy, reduction)
        return trainer.tree.map_structure(lambda value: strategy.reduce(operation, value, axis=None), values)

    trainer.reduce_per_replica = reduce_per_replica
