"""Small collectives by which the workers agree on a number."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf


def sum_over_workers(strategy: Any, values: list[float]) -> npt.NDArray[np.float64]:
    """The element-wise sum of every worker's `values`, the same on all; each worker must call it, with as many values."""
    here = max(1, strategy.num_replicas_in_sync // _workers(strategy))

    def one_replica() -> Any:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        # A worker with several devices speaks once.
        return tf.cond(
            tf.equal(tf.math.floormod(replica, here), 0),
            lambda: tf.constant(values, tf.float64),
            lambda: tf.zeros(len(values), tf.float64),
        )

    @tf.function
    def total() -> Any:
        return strategy.reduce("SUM", strategy.run(one_replica), axis=None)

    return np.asarray(total().numpy(), dtype=np.float64)


def told_by_chief(strategy: Any, is_chief: bool, number: int) -> int:
    """The chief's `number` on every worker; what the others pass does not matter."""
    return int(sum_over_workers(strategy, [float(number) if is_chief else 0.0])[0])


def _workers(strategy: Any) -> int:
    cluster = strategy.cluster_resolver.cluster_spec().as_dict() if strategy.cluster_resolver else {}
    return max(1, len(cluster.get("chief", [])) + len(cluster.get("worker", [])))
