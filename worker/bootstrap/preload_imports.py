"""Imports the modules to preload, and records what else the imports do. A task repeats that on its own import."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from .import_reads import ImportReads
from .import_record import ImportRecord
from .preloaded_modules import ImportEffects, PreloadedModules

# Modules that a library imports at its first use, up to the first training step. Their import takes time and has no
# other effect.
_IMPORTED_LATER = {
    "numpy": ("numpy.random",),
    "tensorflow": tuple(
        f"tensorflow.python.data.ops.{name}_op" for name in ("flat_map", "from_tensors", "range", "zip")
    ),
    "tf_keras": ("tf_keras.api._v2.keras", "tf_keras.src.engine.base_layer_v1"),
}


def preload(
    record: ImportRecord, reads: ImportReads, names: Sequence[str], script_env: Mapping[str, str]
) -> PreloadedModules:
    """Import `names` with `script_env`, the variables that the script sets before it imports them."""
    search_path = list(sys.path)
    gc.disable()  # imports create no garbage, and looking for it takes a fifth of their time
    effects = []
    environ_before = dict(os.environ)
    os.environ.update(script_env)
    with _one_openblas_thread():
        for name in names:
            environ, filters = dict(os.environ), list(warnings.filters)
            before = set(sys.modules)
            with reads:
                importlib.import_module(name)
                record.note(name, sys.modules.keys() - before)
                _import_later_modules()
            changed = {key: value for key, value in os.environ.items() if environ.get(key) != value}
            added = [each for each in warnings.filters if each not in filters]
            effects.append(ImportEffects(name, changed, added))
            _reset_environ(changed, environ)
            warnings.filters[:] = filters  # type: ignore[index]
    # A task sets these variables itself.
    _reset_environ(script_env, environ_before)
    return PreloadedModules(record, effects, search_path, script_env)


def _import_later_modules() -> None:
    for name, modules in _IMPORTED_LATER.items():
        for each in modules if name in sys.modules else ():
            try:
                importlib.import_module(each)
            except ImportError:  # not in this version of the library
                continue


def _reset_environ(changed: Mapping[str, str], before: Mapping[str, str]) -> None:
    for key in changed:
        if key in before:
            os.environ[key] = before[key]
        else:
            os.environ.pop(key, None)


# -- the threads of numpy's OpenBLAS

_THREADS = "OPENBLAS_NUM_THREADS"
# In the order in which OpenBLAS reads them.
_THREAD_VARIABLES = (_THREADS, "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
_THREAD_SETTERS = tuple(
    f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", "_64", "")
)


@contextmanager
def _one_openblas_thread() -> Iterator[None]:
    """Let an OpenBLAS that is loaded meanwhile start no threads: a process with threads cannot be forked safely."""
    before, only_one = dict(os.environ), {_THREADS: "1"}
    os.environ.update(only_one)
    try:
        yield
    finally:
        _reset_environ(only_one, before)


def restore_openblas_threads() -> None:
    """Start as many threads as OpenBLAS would have started in this process by itself."""
    wanted = _wanted_threads()
    if wanted == 1:
        return
    maps = Path("/proc/self/maps").read_bytes()
    paths = {line[line.index(b"/") :] for line in maps.splitlines() if b"/" in line}
    libraries = {
        os.fsdecode(path)
        for path in paths
        if re.search(rb"openblas[^/]{0,255}\.so", path.rpartition(b"/")[2])
    }
    for path in sorted(libraries):
        library = ctypes.CDLL(path)
        setter = next((getattr(library, name) for name in _THREAD_SETTERS if hasattr(library, name)), None)
        if setter is not None:
            setter(ctypes.c_int(wanted))


def _wanted_threads() -> int:
    cores = len(os.sched_getaffinity(0))
    for name in _THREAD_VARIABLES:
        text = os.environ.get(name, "").strip()
        if text.isdecimal() and int(text) > 0:
            return min(int(text), cores)
    return cores
