"""This process's place in the cluster, from TF_CONFIG, before TensorFlow reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass


class ClusterError(ValueError):
    """TF_CONFIG does not describe a cluster of workers."""


@dataclass(frozen=True)
class Place:
    """Which of the training processes this one is; `addresses` (host:port, the chief's first) are all."""

    task: str = "worker:0"
    rank: int = 0
    addresses: tuple[str, ...] = ()

    @property
    def workers(self) -> int:
        return max(1, len(self.addresses))

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    @property
    def peers(self) -> tuple[str, ...]:
        return self.addresses[: self.rank] + self.addresses[self.rank + 1 :]


def read_place(environment: Mapping[str, str]) -> Place:
    """The place that TF_CONFIG gives this process, a lone worker's without it; ClusterError."""
    text = environment.get("TF_CONFIG", "")
    if not text:
        return Place()
    try:
        config = json.loads(text)
        cluster = config.get("cluster") or {}
        chiefs, workers = list(cluster.get("chief", ())), list(cluster.get("worker", ()))
        task = config.get("task") or {}
        kind, index = str(task.get("type", "worker")), int(task.get("index", 0))
    except (AttributeError, TypeError, ValueError) as error:
        raise ClusterError(f"TF_CONFIG cannot be read: {error}") from None
    if not chiefs and not workers:
        return Place()
    if kind not in ("chief", "worker"):
        raise ClusterError(
            f"TF_CONFIG makes this task {kind}:{index}; the built-in program runs workers only"
        )
    if not 0 <= index < len(chiefs if kind == "chief" else workers):
        raise ClusterError(f"TF_CONFIG makes this task {kind}:{index}, which its cluster does not have")
    rank = index if kind == "chief" else len(chiefs) + index
    return Place(f"{kind}:{index}", rank, tuple(str(address) for address in chiefs + workers))
