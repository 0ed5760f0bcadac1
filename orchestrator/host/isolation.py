"""The command line of orch's own Python processes, isolated from the user's modules.

`-I` leaves out the current directory, PYTHONPATH and the user's site, so that no module of the user can replace one of
orch's. orch itself may be installed in one of these places, so the directories that it was loaded from are appended to
sys.path. `-S` then saves the search for installed packages (10 ms of 20).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

_NEEDED = (
    "orchestrator",
    "worker",
    "annotated_types",
    "platformdirs",
    "portpicker",
    "psutil",
    "pydantic",
    "pydantic_core",
    "rich",
    "typing_extensions",
    "typing_inspection",
)
_START = (
    "import json, runpy, sys; sys.path += [d for d in json.loads(sys.argv[2]) if d not in sys.path]; "
    "module = sys.argv[1]; del sys.argv[1:3]; runpy.run_module(module, run_name='__main__', alter_sys=True)"
)


def isolated(module: str, *arguments: str, also_needs: Iterable[str] = ()) -> list[str]:
    """The argv that runs `module` with `arguments` under this interpreter. `also_needs`: other packages."""
    directories = json.dumps(_directories((*_NEEDED, *also_needs)))
    return [sys.executable, "-I", "-S", "-c", _START, module, directories, *arguments]


def own_files() -> dict[str, tuple[int, int]]:
    """The inode and the time of change of each module of orch: an update changes them."""
    found = {}
    for place in (place for name in ("orchestrator", "worker") for place in _places(name)):
        for top, _, names in os.walk(place):
            for path in (f"{top}/{name}" for name in names if name.endswith(".py")):
                with suppress(OSError):  # it is being replaced
                    status = os.stat(path)  # noqa: PTH116 (of hundreds of files at the start of a run)
                    found[path] = status.st_ino, status.st_mtime_ns
    return found


def _directories(packages: Iterable[str]) -> list[str]:
    """The directories from which this process would import the packages. It imports none of them."""
    found: dict[str, None] = {}
    for name in packages:
        spec = find_spec(name)
        places = [str(Path(place).parent) for place in _places(name)]
        if not places and spec is not None and spec.origin is not None:
            places = [str(Path(spec.origin).parent)]
        found.update(dict.fromkeys(places))
    return list(found)


def _places(package: str) -> list[str]:
    """The directories of a package; empty for a module."""
    spec = find_spec(package)
    return [] if spec is None else list(spec.submodule_search_locations or ())
