"""The workers of a cluster: this task's place among them, and sums of values over all of them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from ..after_import import after_import
from ..messages import log
from . import replace, tf

# Keys of collective groups that a strategy may use. TensorFlow takes one for each set of devices.
_GROUP_KEYS = 1000


class Place:
    """The number of tasks that train together in step (chief and workers), and whether this task is their chief.
    With parameter servers the chief trains alone. An evaluator is always alone."""

    def __init__(self, workers: int, is_chief: bool) -> None:
        self.workers = workers
        self.is_chief = is_chief


# The last place that TF_CONFIG gave: a script may remove TF_CONFIG once it has its strategy.
_last_place: list[Place] = []


def place() -> Place | None:
    """The place that TF_CONFIG gives now; None if it is missing, names no task or is invalid."""
    text = os.environ.get("TF_CONFIG")
    if not text:
        return None
    import json

    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        chiefs = [*cluster.get("chief", ()), *cluster.get("master", ())]
        workers = len(chiefs) + len(cluster.get("worker", ()))
        kind, index = task["type"], int(task.get("index", 0))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if "ps" in cluster or kind == "evaluator":
        workers = 1
    return Place(workers, kind in ("chief", "master") or (not chiefs and kind == "worker" and index == 0))


def remember_place() -> Place | None:
    """The place that TF_CONFIG gives now or, if it is gone, the last one."""
    if found := place():
        _last_place[:] = [found]
    return _last_place[0] if _last_place else None


def is_chief() -> bool:
    """Whether this task is the chief, or alone."""
    found = remember_place()
    return found is None or found.is_chief


_logged: set[str] = set()


def log_once(line: str) -> None:
    """Log a line for the user, on the chief only and once."""
    if line not in _logged and is_chief():
        _logged.add(line)
        log(line)


# -- strategies


def arm() -> None:
    """Once TensorFlow is imported, let all strategies of this process use the server of the first one."""
    remember_place()
    after_import("tensorflow", _keep_server_if_possible)


def _keep_server_if_possible(_: ModuleType) -> None:
    try:
        _keep_server()
    except (ImportError, AttributeError):
        return  # another build of TensorFlow, which is not changed


def _keep_server() -> None:
    """Keep the collective server when another MultiWorkerMirroredStrategy has the same cluster. TensorFlow replaces it
    while another worker still receives from this one and while iterators are destroyed, and fails or crashes."""
    from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended
    from tensorflow.python.eager import context

    first_keys = itertools.count(step=_GROUP_KEYS)

    @replace(CollectiveAllReduceExtended, "_initialize_multi_worker")
    def initialize(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        # Keys of older strategies stay in use. Every worker creates the same strategies, in the same order.
        self._collective_key_base += next(first_keys)
        original(self, *args, **kwargs)

    @replace(context.Context, "enable_collective_ops")
    def enable(original: Any, self: Any, server_def: Any) -> None:
        if not _serves_same_cluster(getattr(self, "_collective_ops_server_def", None), server_def):
            original(self, server_def)


def _serves_same_cluster(old: Any, new: Any) -> bool:
    # The rest are settings, which TensorFlow reads when it creates the server.
    names = ("cluster", "job_name", "task_index", "port", "protocol")
    return old is not None and all(getattr(old, name) == getattr(new, name) for name in names)


def spans_workers(strategy: Any) -> bool:
    """Whether `strategy` is a MultiWorkerMirroredStrategy of two workers or more."""
    # The public `cluster_resolver` is set without TF_CONFIG too.
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and bool(
        strategy.extended._in_multi_worker_mode()
    )


def replica_context() -> Any | None:
    """The replica context in which this code runs if its strategy spans workers, else None."""
    context = tf.distribute.get_replica_context()
    return context if context is not None and spans_workers(context.strategy) else None


def is_between_steps() -> bool:
    if not tf.executing_eagerly():
        return False
    return bool(tf.distribute.in_cross_replica_context()) or not tf.distribute.has_strategy()


def first_local(strategy: Any, value: Any) -> Any:
    return strategy.experimental_local_results(value)[0]


def sum_in_step(values: Sequence[Any]) -> list[Any]:
    """Sum each tensor or tf.IndexedSlices over all replicas, in a replica context. None stays None.
    In a traced step all dense values of a type take one collective."""
    context = tf.distribute.get_replica_context()
    # TensorFlow would join values of different types into one vector.
    kinds: dict[Any, list[int]] = {}
    for index, value in enumerate(values):
        if value is not None:
            kinds.setdefault(value.dtype, []).append(index)
    summed = list(values)
    sums: list[Any] = []
    for indices in kinds.values():
        # Collectives run one after the other, in the same order on all workers.
        with tf.control_dependencies([one for one in sums if isinstance(one, tf.Tensor)]):
            sums = context.all_reduce(tf.distribute.ReduceOp.SUM, [values[index] for index in indices])
        for index, total in zip(indices, sums, strict=True):
            summed[index] = total
    return summed


def sum_now(strategy: Any, values: Any) -> Any:
    """Sum a tensor or array over all workers, outside of a step. Return a tensor.
    Every worker must call it, with the same shape and type."""
    replicas = strategy.num_replicas_in_sync // strategy.extended._num_workers
    add = getattr(strategy, "_orch_add", None)
    if add is None:
        add = strategy._orch_add = _adder(strategy)
    total = add(tf.convert_to_tensor(values))
    return total if replicas == 1 else total // replicas if total.dtype.is_integer else total / replicas


def _adder(strategy: Any) -> Any:
    def add_here(value: Any) -> Any:
        # all_reduce asks for the value's device, which an argument does not have.
        here = tf.identity(value)
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, here)

    @tf.function(reduce_retracing=True, autograph=False)  # type: ignore[untyped-decorator]
    def add(value: Any) -> Any:
        return first_local(strategy, strategy.run(add_here, args=(value,)))

    # TensorFlow would count the traces of all strategies, and warn the user about this function of orch.
    add._omit_frequent_tracing_warning = True
    return add
