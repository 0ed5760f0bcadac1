"""The files behind what has been preloaded: were one of them changed, another preloader would be needed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType

# When it was written (ns) and how long it is (bytes).
FileMark = tuple[int, int]
# Where packages are installed, as distributions of Python call it.
_INSTALLED = ("/site-packages/", "/dist-packages/")


def preloaded_files(modules: Mapping[str, ModuleType], named: Sequence[str]) -> dict[str, FileMark | None]:
    """Files that tell a change of what has been imported: of the modules `named`, of each installed package the
    first one, and all that are not installed but of the user's own. None for one that cannot be looked at."""
    return {file: _mark(file) for file in _chosen(modules, named)}


def _chosen(modules: Mapping[str, ModuleType], named: Sequence[str]) -> Iterator[str]:
    library = os.path.dirname(os.__file__) + "/"  # noqa: PTH120
    for name, module in modules.items():
        # Not module.__spec__: what stands in sys.modules may import something to answer that.
        file = getattr(getattr(module, "__dict__", {}).get("__spec__"), "origin", None)
        if not isinstance(file, str) or not file.startswith("/"):
            continue  # built in
        is_installed = any(directory in file for directory in _INSTALLED)
        is_the_users = not is_installed and not file.startswith(library)
        if name in named or is_the_users or (is_installed and "." not in name):
            yield file


def _mark(file: str) -> FileMark | None:
    try:
        found = os.stat(file)  # noqa: PTH116
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
