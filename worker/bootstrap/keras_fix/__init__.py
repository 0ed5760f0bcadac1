"""Makes Keras 3 train rightly over several workers and under each strategy, for this process only, once a script has
imported it."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable
from types import ModuleType

from ..after_import import after_import
from .notices import telling

# Keras 2 is built otherwise, and so is the training step of Keras 3 before the first of these. From the upper
# bound on nobody has looked yet. There the fixes stay off.
FIRST_BROKEN = (3, 0)
FIRST_KNOWN = (3, 10)
FIRST_UNKNOWN = (3, 16)

Say = Callable[[str], None]

# Each is a module of this package with `repair(keras, workers) -> str | None`: it looks whether its fault is
# there, repairs it, and gives what it repaired in a few words for the one log line, or None.
PIECES: tuple[str, ...] = (
    "trainer",
    "optimizers",
    "seeds",
    "averages",
    "saves",
    "backups",
    "callbacks",
)
# What concerns one worker as well: a run of it is started again, too.
ALONE: tuple[str, ...] = ("backups",)
# What one strategy shows, whatever the number of workers: modules with `repair(keras, tell)`, which change nothing
# elsewhere, and say what they repaired when it first matters. Each wraps what those before it have made.
UNDER_STRATEGIES: tuple[str, ...] = (
    "central_storage",
    "server_counts",
    "cut_variables",
    "loss_scaling",
    "late_variables",
)

_UPDATE = 'pip install --upgrade "keras>=3.10,<3.16"'
_DONE = "_orch_multi_worker_fix"


def arm(workers: int, say: Say) -> None:
    """Repair Keras for a cluster of `workers` as soon as it is imported; `say` gets the one log line, if any.

    For one worker the backups are made safe, and what is wrong under one strategy. Imports nothing but the standard
    library by itself. Never raises into the script's import: what goes wrong here is said.
    """
    if workers < 2:
        after_import("keras", functools.partial(_repair_alone, say))
    else:
        # tf.data is TensorFlow's own: whichever Keras there is, and loops without any.
        importlib.import_module(".iterators", __name__).arm(workers)
        importlib.import_module(".saves", __name__).remember_place()
        after_import("keras", functools.partial(_repair_and_say, workers, say))


def repair(keras: ModuleType, workers: int) -> str | None:
    """Repair the imported `keras` for a cluster of `workers`; one line to log, None if nothing was needed.

    Another backend than TensorFlow, Keras 2 and versions nobody has looked at are left alone. Calling it
    again changes nothing.
    """
    version = str(getattr(keras, "__version__", ""))
    if workers < 2 or hasattr(keras, _DONE) or not FIRST_BROKEN <= parse_version(version) < FIRST_UNKNOWN:
        return None
    if keras.backend.backend() != "tensorflow":
        return None
    if not is_known(version):
        return f"Keras {version} is broken with {workers} workers and too old to be fixed: {_UPDATE}"
    setattr(keras, _DONE, True)
    repaired = [importlib.import_module(f".{name}", __name__).repair(keras, workers) for name in PIECES]
    words = [piece for piece in repaired if piece]
    if not words:
        return None
    return f"Keras {version} is broken with {workers} workers; fixed for this process: {', '.join(words)}"


def repair_alone(keras: ModuleType) -> None:
    """Repair what concerns a single worker in the imported `keras`; nothing is said of it."""
    version = str(getattr(keras, "__version__", ""))
    if is_known(version) and not hasattr(keras, _DONE):
        setattr(keras, _DONE, True)
        for name in ALONE:
            importlib.import_module(f".{name}", __name__).repair(keras, 1)


def repair_under_strategies(keras: ModuleType, say: Say) -> None:
    """Repair what is wrong under one strategy in the imported `keras`; `say` gets a line when it first matters."""
    version = str(getattr(keras, "__version__", ""))
    if is_known(version) and keras.backend.backend() == "tensorflow":
        tell = telling(keras, say)
        for name in UNDER_STRATEGIES:
            importlib.import_module(f".{name}", __name__).repair(keras, tell)


def is_known(version: str) -> bool:
    return FIRST_KNOWN <= parse_version(version) < FIRST_UNKNOWN


def parse_version(version: str) -> tuple[int, int]:
    """Major and minor of a version such as 3.15.1 or 3.9.0.dev2024; (0, 0) when it has none."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _repair_alone(say: Say, keras: ModuleType) -> None:
    try:
        repair_alone(keras)
        repair_under_strategies(keras, say)
    except Exception as error:
        say(f"Keras is as released, or repaired in part: {type(error).__name__}: {error}")


def _repair_and_say(workers: int, say: Say, keras: ModuleType) -> None:
    try:
        line = repair(keras, workers)
        repair_under_strategies(keras, say)
    except Exception as error:
        line = f"Keras could not be fixed for {workers} workers: {type(error).__name__}: {error}"
    if line is not None:
        say(line)
