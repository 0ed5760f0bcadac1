"""Runs as one worker of `two_workers.run_cases`: `case_program.py MODULE[:MODULE] DIRECTORY CASE...`."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Place:
    """The place where a case runs. With one worker `strategy` is TensorFlow's default strategy."""

    rank: int
    workers: int
    strategy: Any
    directory: Path

    def scope(self) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = self.strategy.scope()
        return scope


def main(module_paths: str, directory: str, cases: Sequence[str]) -> None:
    workers = int(os.environ["CASE_WORKERS"])
    if int(os.environ["CASE_FIXED"]):
        from worker.bootstrap.keras_fix import arm

        arm(workers, lambda line: print(f"said: {line}", flush=True))
    import numpy as np
    import tensorflow as tf

    rank, strategy = 0, tf.distribute.get_strategy()
    if workers > 1:
        rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    place = Place(rank, workers, strategy, Path(directory))
    functions: dict[str, Any] = {}
    for path in module_paths.split(os.pathsep):
        functions |= vars(_load(Path(path)))
    for case in cases:
        tf.keras.utils.set_random_seed(7)
        tf.keras.mixed_precision.set_global_policy("float32")
        values = functions[case](place)
        part = place.directory / f"{case}-{rank}.part"
        with part.open("wb") as file:
            np.savez(file, **values)
        part.rename(part.with_suffix(".npz"))
        print(f"done {case}", flush=True)
    if workers > 1:
        _meet(place)


def _load(path: Path) -> Any:
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _meet(place: Place) -> None:
    """Wait for all workers: an early exit looks like a crash to the others. The first worker also serves the barrier,
    so it exits last."""
    from tensorflow.python.eager import context

    context.context().wait_at_barrier("end of the cases", 120_000)
    others = [place.directory / f"met-{rank}" for rank in range(1, place.workers)]
    if place.rank > 0:
        others[place.rank - 1].touch()
        return
    deadline = time.monotonic() + 60
    while not all(other.exists() for other in others) and time.monotonic() < deadline:
        time.sleep(0.01)


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2], sys.argv[3:])
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)
