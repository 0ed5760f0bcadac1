"""This task's place among the workers, as TF_CONFIG has it."""

from __future__ import annotations

import os


class Place:
    """How many tasks train together in step (chief and workers), and whether this one is their chief. Where there are
    parameter servers the chief alone trains; an evaluator is always alone."""

    def __init__(self, workers: int, is_chief: bool) -> None:
        self.workers = workers
        self.is_chief = is_chief


def place() -> Place | None:
    """The place TF_CONFIG gives now; None when it is missing or none that TensorFlow would take."""
    text = os.environ.get("TF_CONFIG")
    if not text:
        return None
    import json

    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config.get("task") or {}
        chiefs = [*cluster.get("chief", ()), *cluster.get("master", ())]
        workers = len(chiefs) + len(cluster.get("worker", ()))
        kind, index = task.get("type"), int(task.get("index", 0))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if "ps" in cluster or kind == "evaluator":
        workers = 1
    return Place(workers, kind in ("chief", "master") or (not chiefs and kind == "worker" and index == 0))
