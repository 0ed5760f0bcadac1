"""The files behind what has been preloaded: were one of them changed, another preloader would be needed."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType

# When it was written (ns) and how long it is (bytes).
FileMark = tuple[int, int]


def preloaded_files(modules: Mapping[str, ModuleType], named: Sequence[str]) -> dict[str, FileMark | None]:
    """Files that tell a change of what has been imported: of the modules `named`, of each installed package the
    first one, and all that are not installed but of the user's own. None for one that cannot be looked at."""
    paths = sysconfig.get_paths()
    installed = tuple({f"{paths[kind]}/" for kind in ("purelib", "platlib")})
    library = tuple({f"{paths[kind]}/" for kind in ("stdlib", "platstdlib")})
    return {file: _mark(file) for file in _chosen(modules, named, installed, library)}


def _chosen(
    modules: Mapping[str, ModuleType],
    named: Sequence[str],
    installed: tuple[str, ...],
    library: tuple[str, ...],
) -> Iterator[str]:
    for name, module in modules.items():
        file = getattr(getattr(module, "__spec__", None), "origin", None)
        if not isinstance(file, str) or not file.startswith("/"):
            continue  # built in
        is_first_of_installed = file.startswith(installed) and "." not in name
        if name in named or is_first_of_installed or not file.startswith(installed + library):
            yield file


def _mark(file: str) -> FileMark | None:
    try:
        found = os.stat(file)  # noqa: PTH116
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
