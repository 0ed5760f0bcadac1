"""Runs the cases as one kind of process: `program.py plain|mirrored|workers REPLICAS DIRECTORY WHICH [WITHOUT]`.

WHICH is all, quick, or names joined by ";"; WITHOUT is names. Writes DIRECTORY/NAME-RANK.npz for each case, or
NAME-RANK.txt with the error, and with one process cases.json with what was declared.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from case import CASES, Case, Place

# In the order of the table.
MODULES = ("model", "layer", "data", "file", "loss", "metric", "optimizer", "training", "step", "loop")
for _module in MODULES:
    importlib.import_module(f"{_module}_cases")

# A worker that waits this long for the others waits in vain.
LONGEST_CASE_S = 900


def main(kind: str, replicas: int, directory: Path, which: str, without: str = "") -> None:
    left_out = without.split(";")
    chosen = [case for case in _chosen(which) if case.name not in left_out and (case.three or replicas < 3)]
    rank, strategy = _start(kind, replicas)
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
        keras.utils.set_random_seed(11)
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
    faulthandler.cancel_dump_traceback_later()


def file_name(case: str) -> str:
    return re.sub(r"\W+", "-", case)


def _chosen(which: str) -> list[Case]:
    if which in ("all", "quick"):
        return [case for case in CASES.values() if which == "all" or case.quick]
    return [CASES[name] for name in which.split(";")]


def _declared(case: Case) -> dict[str, Any]:
    return {"name": case.name, "topic": case.topic, "three": case.three, "differs": case.differs}


def _start(kind: str, replicas: int) -> tuple[int, Any]:
    """Return the rank and the strategy of this process."""
    if kind == "workers":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        return json.loads(os.environ["TF_CONFIG"])["task"]["index"], strategy
    if kind == "plain":
        return 0, tf.distribute.get_strategy()
    devices = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    return 0, tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(replicas)])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
