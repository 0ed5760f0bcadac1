"""Fixes for Keras 3, applied in this process only, right after the script has imported Keras.

To add a fix, write a function in the module of its subject, or in a new module of this package, and add
"module.function" to one of the three lists below. They say when the fix applies and what its function takes and
returns. The function checks whether the fault exists, then replaces the faulty functions or methods of Keras by
`@replace`. Test it in tests/keras/ (two workers) or tests/process/task/test_under_strategies.py (one process).
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..after_import import after_import

# For two workers or more, in this order: `fix(keras)` returns what it repaired, for the log line, or None.
SEVERAL_WORKERS = (
    "losses.share_losses",
    "trainer.fix_trainer",
    "optimizers.sum_gradients_first",
    "layer_state.vary_seeds",
    "layer_state.average_statistics",
    "saves.share_paths",
    "backups.make_atomic",
    "callbacks.share_paths",
)
# For one worker, which may be restarted too: the same kind of function. Its result is not logged.
ONE_WORKER = ("backups.make_atomic",)
# For any number of workers: `fix(keras, report)` changes nothing outside of its strategy, and calls `report(fault)`
# when the fault first matters. A fix wraps what the fixes before it have replaced.
EACH_STRATEGY = (
    "variables.fix_central_storage",
    "variables.add_on_servers",
    "variables.train_cut_variables",
    "optimizers.share_overflow",
    "optimizers.build_before_step",
    "optimizers.compile_in_scope",
)

# Keras 2 is built differently, and so is the training step of Keras 3 before FIRST_KNOWN. Versions from FIRST_UNKNOWN
# on have not been examined. They all stay as they are.
FIRST_BROKEN = (3, 0)
FIRST_KNOWN = (3, 10)
FIRST_UNKNOWN = (3, 16)
_UPDATE = 'pip install --upgrade "keras>=3.10,<3.16"'
_DONE = "_orch_multi_worker_fix"

Log = Callable[[str], None]
# Takes a fault as in "Keras 3.15.1 <fault>; fixed for this process".
Report = Callable[[str], None]


def arm(workers: int, log: Log) -> None:
    """Repair Keras for a cluster of `workers` as soon as it is imported; `log` takes the lines for the user.
    Only the standard library is imported before. Errors are logged, and never reach the script's import."""
    # Fixes for TensorFlow itself apply with any Keras, and without Keras.
    _load_function("datasets.copy_arrays")()
    if workers > 1:
        _load_function("iterators.arm")()
        _load_function("workers.arm")()
    after_import("keras", functools.partial(_repair_and_log, workers, log))


def repair(keras: ModuleType, workers: int) -> str | None:
    """Repair the imported `keras` for a cluster of `workers`; return the line to log, None if nothing was needed.
    Other backends than TensorFlow, Keras 2 and unknown versions are left alone. A second call changes nothing."""
    version = _version(keras)
    if workers < 2 or hasattr(keras, _DONE) or not FIRST_BROKEN <= parse_version(version) < FIRST_UNKNOWN:
        return None
    if keras.backend.backend() != "tensorflow":
        return None
    if not is_known(version):
        return f"Keras {version} is broken with {workers} workers and too old to be fixed: {_UPDATE}"
    setattr(keras, _DONE, True)
    repaired = [part for name in SEVERAL_WORKERS if (part := _load_function(name)(keras))]
    if not repaired:
        return None
    return f"Keras {version} has faults with {workers} workers, fixed for this process: {', '.join(repaired)}"


def repair_for_one_worker(keras: ModuleType) -> None:
    """Repair in the imported `keras` what concerns a single worker."""
    if is_known(_version(keras)) and not hasattr(keras, _DONE):
        setattr(keras, _DONE, True)
        for name in ONE_WORKER:
            _load_function(name)(keras)


def repair_each_strategy(keras: ModuleType, log: Log) -> None:
    """Repair in the imported `keras` what fails under one strategy; `log` takes a line when it first matters."""
    if is_known(_version(keras)) and keras.backend.backend() == "tensorflow":
        report = reporter(keras, log)
        for name in EACH_STRATEGY:
            _load_function(name)(keras, report)


def reporter(keras: ModuleType, log: Log) -> Report:
    """Return a function that logs each fault of the imported `keras` once."""
    reported: set[str] = set()

    def report(fault: str) -> None:
        if fault not in reported:
            reported.add(fault)
            log(f"Keras {_version(keras)} {fault}; fixed for this process")

    return report


class _TensorFlow:
    """The module tensorflow, looked up at each use: this package must not import it before the script does."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("tensorflow"), name)


tf: Any = _TensorFlow()


def replace(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate the replacement of `owner.name`, a function or method. The original is its first argument."""
    original = getattr(owner, name)

    def decorate(replacement: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return replacement(original, *args, **kwargs)

        setattr(owner, name, call)
        return call

    return decorate


def is_known(version: str) -> bool:
    return FIRST_KNOWN <= parse_version(version) < FIRST_UNKNOWN


def parse_version(version: str) -> tuple[int, int]:
    """Major and minor of a version such as 3.15.1 or 3.9.0.dev2024; (0, 0) if it has none."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _version(keras: ModuleType) -> str:
    return str(getattr(keras, "__version__", ""))


def _load_function(name: str) -> Any:
    """Return the function "module.function" of this package, and import its module if necessary."""
    module, _, function = name.partition(".")
    return getattr(importlib.import_module(f".{module}", __name__), function)


def _repair_and_log(workers: int, log: Log, keras: ModuleType) -> None:
    line = None
    try:
        if workers > 1:
            line = repair(keras, workers)
        else:
            repair_for_one_worker(keras)
        repair_each_strategy(keras, log)
    except Exception as error:
        result = (
            f"could not be fixed for {workers} workers"
            if workers > 1
            else "is as released, or repaired in part"
        )
        line = f"Keras {result}: {type(error).__name__}: {error}"
    if line is not None:
        log(line)
