"""Runs cases as one process of a kind: `program.py plain|mirrored|workers REPLICAS DIRECTORY WHICH [WITHOUT]`.

WHICH is all, quick, or names joined by ";"; WITHOUT is names. Writes DIRECTORY/NAME-RANK.npz for each case, or
NAME-RANK.txt with the error, and with one process cases.json with what was declared. CASE_FIXED=1 arms the Keras fixes,
as orch does in its tasks.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import re
import sys
import time
import traceback
from pathlib import Path
from typing import Any

REPLICAS = int(sys.argv[2])
if os.environ.get("CASE_FIXED") == "1" and sys.argv[1] == "workers":
    from worker.bootstrap.keras_fix import arm

    arm(REPLICAS, lambda line: print(f"said: {line}", flush=True))

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from case import CASES, SEED, Case, Place  # noqa: E402

# In the order of the table; the last ones are not in it.
MODULES = (
    *("model", "layer", "data", "loss", "metric", "optimizer", "training", "step", "loop"),
    *("uneven", "report", "state", "shared_path", "own_step"),
)
for _module in MODULES:
    importlib.import_module(f"{_module}_cases")

# Limit of a worker's wait for the others.
LONGEST_CASE_S = 900


def main(kind: str, directory: Path, which: str, without: str = "") -> None:
    left_out = without.split(";")
    chosen = [case for case in _chosen(which) if case.name not in left_out]
    rank, strategy = _start(kind)
    if kind == "plain":
        (directory / "cases.json").write_text(json.dumps([_declared(case) for case in chosen]))
    for case in chosen:
        faulthandler.dump_traceback_later(LONGEST_CASE_S, exit=True)
        with (directory / f"begun-{rank}").open("a") as begun:
            begun.write(f"{case.name}\n")
        files = directory / f"{file_name(case.name)}.files"
        files.mkdir(exist_ok=True)
        keras.utils.clear_session(free_memory=False)
        keras.config.set_dtype_policy("float32")
        keras.utils.set_random_seed(SEED)
        try:
            values = case.run(Place(strategy, files, rank))
        except Exception as error:
            # The other workers may wait for this one: they are ended, too.
            (directory / f"{file_name(case.name)}-{rank}.txt").write_text(f"{type(error).__name__}: {error}")
            if kind == "workers":
                raise
            continue
        part = directory / f"{file_name(case.name)}-{rank}.part"
        with part.open("wb") as file:
            np.savez(file, **values)
        part.rename(part.with_suffix(".npz"))
        print(f"done {case.name}", flush=True)
    faulthandler.cancel_dump_traceback_later()
    if kind == "workers":
        _meet(directory, rank)


def file_name(case: str) -> str:
    return re.sub(r"\W+", "-", case)


def _chosen(which: str) -> list[Case]:
    if which not in ("all", "quick"):
        return [CASES[name] for name in which.split(";")]
    of_table = [case for case in CASES.values() if case.topic and (case.three or REPLICAS < 3)]
    return [case for case in of_table if which == "all" or case.quick]


def _declared(case: Case) -> dict[str, Any]:
    return {name: getattr(case, name) for name in ("name", "topic", "three", "differs", "within")}


def _start(kind: str) -> tuple[int, Any]:
    """Return the rank and the strategy of this process."""
    if kind == "workers":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        return json.loads(os.environ["TF_CONFIG"])["task"]["index"], strategy
    if kind == "plain":
        return 0, tf.distribute.get_strategy()
    devices = [tf.config.LogicalDeviceConfiguration()] * REPLICAS
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    return 0, tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(REPLICAS)])


def _meet(directory: Path, rank: int) -> None:
    """Wait for all workers: an early exit looks like a crash to the others. The first worker also serves the barrier,
    so it exits last."""
    from tensorflow.python.eager import context

    context.context().wait_at_barrier("end of the cases", 120_000)
    others = [directory / f"met-{other}" for other in range(1, REPLICAS)]
    if rank > 0:
        others[rank - 1].touch()
        return
    deadline = time.monotonic() + 60
    while not all(other.exists() for other in others) and time.monotonic() < deadline:
        time.sleep(0.01)


if __name__ == "__main__":
    try:
        main(sys.argv[1], Path(sys.argv[3]), *sys.argv[4:])
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)
