"""Which modules a preloader may keep: finds those that are installed, and records what imports read.

Imports read variables, and files whose change requires another preloader.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Beginnings of the names of variables that TensorFlow, Keras, NumPy and the libraries below them read during their
# import, also in C.
READ_BY_TENSORFLOW = ("TF_", "TF2_", "KERAS_", "XLA_", "TPU_", "GRPC_", "ABSL_", "PROTOCOL_BUFFERS_")
READ_AT_IMPORT = (
    *READ_BY_TENSORFLOW,
    *("CUDA_", "NVIDIA_"),
    *("OMP_", "OPENBLAS_", "GOTO_", "MKL_", "KMP_", "ONEDNN_", "DNNL_", "NUMPY_", "NPY_", "HDF5_", "LD_"),
)
# Time of modification (ns) and size (bytes).
FileMark = tuple[int, int]
# The ends of the directories into which distributions install packages.
_INSTALLED = ("/site-packages", "/dist-packages")
# Each look finds these files with other times.
_NOT_FILES = ("/proc/", "/sys/", "/dev/")


def is_installed(name: str) -> bool:
    """Return whether a module is of the standard library, or in a directory into which packages are installed.

    False for the user's own modules, on PYTHONPATH or installed as editable. The module is not imported.
    """
    try:
        spec = find_spec(name.partition(".")[0])
    except (ImportError, ValueError, AttributeError):
        return True
    if spec is None:
        return True  # its import reports it
    places = list(spec.submodule_search_locations or ())
    file = next(iter(places), spec.origin)
    if file is None or not file.startswith("/"):
        return True  # built in, or frozen
    library = os.path.dirname(os.__file__) + "/"  # noqa: PTH120
    if _is_of_library(file, library) or any(f"{end}/" in file for end in _INSTALLED):
        return True
    # As `pip install --target` makes it.
    return any(entry.endswith(".dist-info") for entry in _names_in(os.path.dirname(file)))  # noqa: PTH120


class ImportReads:
    """Records the variables and files that Python code reads within the `with`."""

    def __init__(self) -> None:
        self.variables: set[str] = set()
        self._opened: set[str] = set()
        self._environ: Any = type(os.environ)
        self._get_variable = self._environ.__getitem__
        self._open = builtins.open

    def __enter__(self) -> ImportReads:
        def get_variable(environ: Any, name: Any) -> Any:
            self.variables.add(os.fsdecode(name) if isinstance(name, str | bytes) else "")
            return self._get_variable(environ, name)

        def open_file(file: Any, *arguments: Any, **keywords: Any) -> Any:
            if isinstance(file, str | bytes | os.PathLike):
                self._opened.add(os.path.abspath(os.fsdecode(file)))  # noqa: PTH100 (does not follow links)
            return self._open(file, *arguments, **keywords)

        self._environ.__getitem__ = get_variable
        builtins.open = io.open = open_file
        return self

    def __exit__(self, *_: object) -> None:
        self._environ.__getitem__ = self._get_variable
        builtins.open = io.open = self._open

    def files(self, modules: Mapping[str, ModuleType]) -> dict[str, FileMark | None]:
        """Return marks of the files that decide on what an import of `modules` does; None if a file cannot be read.

        They are the files of the modules, those that their code has read, the interpreter, and the directories of
        installed packages: an import may try to import a package that is not there yet."""
        return {file: mark(file) for file in dict.fromkeys(self._chosen_files(modules))}

    def _chosen_files(self, modules: Mapping[str, ModuleType]) -> Iterator[str]:
        library = os.path.dirname(os.__file__) + "/"  # noqa: PTH120
        for module in modules.values():
            # Not module.__spec__: an object in sys.modules may import something to answer that.
            file = getattr(getattr(module, "__dict__", {}).get("__spec__"), "origin", None)
            # Without one it is built in. The standard library changes with the interpreter.
            if isinstance(file, str) and file.startswith("/") and not _is_of_library(file, library):
                yield file
        yield from (file for file in self._opened if not file.startswith(_NOT_FILES))
        yield from (sys.executable, f"{sys.prefix}/pyvenv.cfg")
        for directory in sys.path:
            if directory.endswith(_INSTALLED):
                yield directory
                yield from (file for file in _names_in(directory) if file.endswith(".pth"))


def _is_of_library(file: str, library: str) -> bool:
    return file.startswith(library) and not any(f"{end}/" in file for end in _INSTALLED)


def _names_in(directory: str) -> list[str]:
    try:
        return [f"{directory}/{name}" for name in os.listdir(directory)]  # noqa: PTH208 (as texts)
    except OSError:
        return []


def mark(file: str) -> FileMark | None:
    """Return the mark of a file; None if it cannot be read."""
    try:
        found = os.stat(file)  # noqa: PTH116
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
