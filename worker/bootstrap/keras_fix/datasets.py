"""Data for several workers: each takes its part of every global batch, and all have the same number of batches."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from ..after_import import after_import
from . import replace, tf
from .batches import usual_batch
from .rows import refuse_tables, rows_by_example, share_rows
from .workers import log_once, spans_workers, sum_now

INFINITE = -1
# TensorFlow uses an array's memory as it is if its address is a multiple of this number of bytes.
_SHARED_ALIGNMENT = 64
# Data sets that read no files. TensorFlow would share them out by element.
_IN_MEMORY = frozenset(
    f"{kind}Dataset"
    for kind in (
        *("TensorSlice", "Tensor", "Range", "Batch", "ParallelBatch", "Map", "ParallelMap", "Prefetch"),
        *("Repeat", "Shuffle", "Take", "Skip", "Zip", "Cache", "Filter", "Options"),
    )
)


def copy_arrays() -> None:
    """Once TensorFlow is imported, keep it from writing to arrays that a generator or `py_function` returns.
    It may compute in place in a slice of such an array (docs/development/upstream.md)."""
    after_import("tensorflow", _copy_arrays)


def _copy_arrays(_: ModuleType) -> None:
    try:
        import numpy as np
        from tensorflow.python.ops import script_ops

        registry = script_ops.FuncRegistry
    except (ImportError, AttributeError):
        return  # another build of TensorFlow, which is not changed

    def copied(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value if value.ctypes.data % _SHARED_ALIGNMENT else value.copy()
        if not (isinstance(value, tf.Tensor) and value.dtype.is_numpy_compatible and "CPU" in value.device):
            return value
        # A function such as tf.squeeze makes a tensor in an array's memory.
        try:
            with tf.device(value.device):
                return tf.raw_ops.DeepCopy(x=value)
        except tf.errors.OpError:
            return value  # quantized numbers, for example

    @replace(registry, "__call__")
    def call_python(original: Any, self: Any, *args: Any) -> Any:
        result = original(self, *args)
        return [copied(value) for value in result] if isinstance(result, list) else copied(result)


def replace_epoch_iterator(trainer: Any) -> None:
    """Replace how fit, evaluate and predict share out the data of models that span workers."""

    @replace(trainer.TFEpochIterator, "__init__")
    def init(original: Any, self: Any, distribute_strategy: Any = None, *args: Any, **kwargs: Any) -> None:
        if not spans_workers(distribute_strategy):
            original(self, distribute_strategy, *args, **kwargs)
            return
        trainer.EpochIterator.__init__(self, *args, **kwargs)
        self._distribute_strategy = distribute_strategy
        self._distributed_dataset = _distribute(self.data_adapter, self.steps_per_epoch, distribute_strategy)

    def get_iterator(self: Any) -> Any:
        if not spans_workers(self._distribute_strategy):
            return self._distributed_dataset
        return _Counted(self._distributed_dataset)

    trainer.TFEpochIterator._get_iterator = get_iterator


class _Counted:
    """A distributed data set whose iterators know how many steps they have left."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __iter__(self) -> Any:
        iterator = iter(self._dataset)
        steps = getattr(self._dataset, "_orch_steps", None)
        if steps is not None:
            iterator._orch_steps_left = steps
        return iterator


def steps_left(iterator: Any) -> float | None:
    """The number of steps that the iterator has left, None if it is unknown."""
    left = getattr(iterator, "_orch_steps_left", None)
    return None if left is None else float(left)


def take_steps(iterator: Any, wanted: int) -> int:
    """Take up to `wanted` steps from the iterator's count; StopIteration if none is left."""
    taken = int(min(wanted, iterator._orch_steps_left))
    if taken < 1:
        raise StopIteration
    iterator._orch_steps_left -= taken
    return taken


def _distribute(adapter: Any, steps: int | None, strategy: Any) -> Any:
    """Each worker's part of the adapter's data, for `steps` an epoch if given."""
    with _same_order_everywhere(adapter, strategy):
        dataset = adapter.get_tf_dataset()
    usual_batch.examples, usual_batch.rows = 0.0, ()
    if isinstance(dataset, tf.distribute.DistributedDataset):
        return dataset
    usual_batch.examples = _global_batch(adapter, dataset) / strategy.num_replicas_in_sync
    parts = len(tf.nest.flatten(dataset.element_spec))
    rows: list[int | None] = [1] * parts if _is_arrays(adapter) else rows_by_example(dataset)
    usual_batch.rows = rows
    batches = adapter.num_batches or 0
    same_batches = _have_same_batches(batches, steps, strategy)
    one_replica_each = strategy.num_replicas_in_sync == strategy.extended._num_workers
    is_shared_by_rows = one_replica_each and _has_rows(dataset) and _is_shared_by_element(adapter, dataset)
    is_endless = int(dataset.cardinality()) == INFINITE
    if not is_endless:
        _explain_own_shards(dataset, batches, strategy)
    elif all(number in (1, None) for number in rows):
        is_shared_by_rows = False
    if is_shared_by_rows:
        distributed = strategy.distribute_datasets_from_function(functools.partial(share_rows, dataset, rows))
        if same_batches or is_endless:
            # No step needs to ask whether a worker has no batch left.
            distributed._enable_get_next_as_optional = False
    else:
        refuse_tables(dataset, rows)
        distributed = strategy.experimental_distribute_dataset(dataset)
    if is_endless:
        distributed._orch_steps = float("inf")
    elif is_shared_by_rows and same_batches:
        distributed._orch_steps = batches
    return distributed


def _explain_own_shards(dataset: Any, batches: int, strategy: Any) -> None:
    """Log that a part of the data stays unused if the script shards by itself, and batches by the worker's size."""
    if not _is_sharded_by_script(dataset):
        return
    from tensorflow.python.data.experimental.ops.distribute import compute_batch_size

    size = int(compute_batch_size(dataset))
    if batches < 1 or size < 1:
        return
    used = -(-size // strategy.extended._num_workers)
    log_once(
        f"the script shards its data set (auto-shard policy OFF). TensorFlow takes its batches of {size} as those of "
        f"all workers: in the {batches} steps of an epoch each worker uses {batches * used:,} of its "
        f"{batches * size:,} examples, always the first. Remove shard() and the policy, then the workers share all data"
    )


def _is_sharded_by_script(dataset: Any) -> bool:
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return policy == tf.data.experimental.AutoShardPolicy.OFF and _has_source(dataset, "_ShardDataset")


def _has_source(dataset: Any, kind: str) -> bool:
    return type(dataset).__name__ == kind or any(_has_source(source, kind) for source in dataset._inputs())


def _global_batch(adapter: Any, dataset: Any) -> int:
    """The number of examples in a batch of all workers, 0 if it is unknown."""
    from tensorflow.python.data.experimental.ops.distribute import compute_batch_size

    return int(adapter.batch_size) if _is_arrays(adapter) else max(0, int(compute_batch_size(dataset)))


def _have_same_batches(batches: int, steps: int | None, strategy: Any) -> bool:
    """Whether all workers are known to have the same number of batches; ValueError if their epochs differ."""
    # Keras reports a number that is not an int when its epoch begins.
    numbers = [batches, int(steps or batches)]
    sums = sum_now(
        strategy, tf.constant([*numbers, *(n * n for n in numbers), *(int(n > 0) for n in numbers)], tf.int64)
    )
    workers = strategy.extended._num_workers
    totals, squares, known = (sums.numpy()[at : at + 2].tolist() for at in (0, 2, 4))
    same = [workers * square == total * total for total, square in zip(totals, squares, strict=True)]
    if known[1] == workers and not same[1]:
        raise ValueError(
            f"The workers have epochs of different lengths, this one of {numbers[1]} batches: the others would "
            "wait for it for ever. Give all workers the same data, or the same steps_per_epoch (steps)."
        )
    return bool(known[0] == workers and same[0])


def _has_rows(dataset: Any) -> bool:
    """Whether all parts are tensors with a first axis, and not sparse, ragged or absent."""
    specs = tf.nest.flatten(dataset.element_spec)
    return all(isinstance(spec, tf.TensorSpec) and (spec.shape.rank or 0) > 0 for spec in specs)


def _is_arrays(adapter: Any) -> bool:
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    return isinstance(adapter, ArrayDataAdapter)


def _is_shared_by_element(adapter: Any, dataset: Any) -> bool:
    """Whether TensorFlow would share out the data by element: it is in memory, and no other policy is chosen."""
    if _is_arrays(adapter):
        return True
    policy = dataset.options().experimental_distribute.auto_shard_policy
    policies = tf.data.experimental.AutoShardPolicy
    if policy not in (policies.AUTO, policies.DATA):
        return False
    return policy == policies.DATA or _is_in_memory(dataset)


def _is_in_memory(dataset: Any) -> bool:
    name = type(dataset).__name__.lstrip("_").removesuffix("V2")
    return name in _IN_MEMORY and all(_is_in_memory(source) for source in dataset._inputs())


@contextlib.contextmanager
def _same_order_everywhere(adapter: Any, strategy: Any) -> Iterator[None]:
    """Shuffle arrays equally on all workers, with or without a seed, so that an epoch uses each example once."""
    from tensorflow.python.eager import context as eager

    if not getattr(adapter, "_shuffle", False):
        yield
        return
    before = eager.global_seed()
    own = int.from_bytes(os.urandom(3)) if before is None else int(before)
    chiefs = own if strategy.extended._is_chief else 0
    agreed = int(sum_now(strategy, tf.constant(chiefs, tf.int64)))
    if before == agreed:
        yield
        return
    tf.random.set_seed(agreed)
    try:
        yield
    finally:
        eager.set_global_seed(before)
