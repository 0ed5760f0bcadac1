"""Reports the versions of TensorFlow and Keras in a task, and the checkpoints and models that it saves."""

from __future__ import annotations

import os
import sys
import time

from .after_import import after_import
from .messages import attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from .messages import ProgressPipe

# Module, class (or none) and function. The second argument of each is the path.
_SAVES = (
    ("tensorflow.python.checkpoint.checkpoint", "TrackableSaver", "save"),
    ("keras.src.saving.saving_lib", "", "save_model"),
    ("keras.src.saving.saving_lib", "", "save_weights_only"),
    ("keras.src.legacy.saving.legacy_h5_format", "", "save_model_to_hdf5"),
    ("tf_keras.src.saving.saving_lib", "", "save_model"),
    ("tf_keras.src.saving.saving_lib", "", "save_weights_only"),
    ("tf_keras.src.saving.legacy.hdf5_format", "", "save_model_to_hdf5"),
)


def report_versions(pipe: ProgressPipe) -> None:
    """Report each version when its module has been imported."""
    found = {"python": sys.version.split()[0]}

    def report(module: ModuleType) -> None:
        version = getattr(module, "__version__", None)
        if version is not None:  # else it is a module of the script
            found[module.__name__] = str(version)
            pipe.report(versions=found)

    for name in ("tensorflow", "keras", "tf_keras"):
        after_import(name, lambda module: attempt("reporting versions", lambda: report(module)))


def report_saves(pipe: ProgressPipe) -> None:
    """Report the name of each saved file or checkpoint, and the time that it took."""
    for module, owner, name in _SAVES:

        def watch(module: ModuleType, owner: str = owner, name: str = name) -> None:
            target = getattr(module, owner, None) if owner else module
            if hasattr(target, name):  # else it is a version that saves otherwise
                attempt("noticing saved checkpoints", lambda: _watch(target, name, pipe))

        after_import(module, watch)


def _watch(owner: Any, name: str, pipe: ProgressPipe) -> None:
    from functools import wraps  # only after TensorFlow, which imports it

    save = getattr(owner, name)

    @wraps(save)
    def saving(*arguments: Any, **named: Any) -> Any:
        began = time.monotonic()
        result = save(*arguments, **named)
        took_s = round(time.monotonic() - began, 3)
        attempt(
            "noticing saved checkpoints",
            lambda: pipe.report(saved={"name": _name(arguments, named), "seconds": took_s}),
        )
        return result

    setattr(owner, name, saving)


def _name(arguments: tuple[Any, ...], named: dict[str, Any]) -> str:
    path = arguments[1] if len(arguments) > 1 else named.get("filepath", named.get("file_prefix", ""))
    name = os.path.basename(os.fspath(path))  # noqa: PTH119 (pathlib is slow to import)
    # The fixes for Keras write beside the path first (keras_fix/saves.py).
    mark = f".{os.environ.get('ORCH_TASK', 'worker').replace(':', '-')}-{os.getpid()}"
    if name.startswith(".") and mark in name:
        name = name[1:].replace(mark, "")
    # The number of a TensorFlow checkpoint.
    number = arguments[2] if len(arguments) > 2 else named.get("checkpoint_number")
    return f"{name}-{int(number)}" if isinstance(number, int) and not isinstance(number, bool) else name
