"""The command line of orch's own Python processes, isolated from the user's modules.

`-I` leaves out the current directory, PYTHONPATH and the user's site, so that no module of the user can replace one of
orch's. orch itself may be installed in one of these places, so the directories that it was loaded from are appended to
sys.path. `-S` then saves the search for installed packages (10 ms of 20).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
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


def _directories(packages: Iterable[str]) -> list[str]:
    """The directories from which this process would import the packages. It imports none of them."""
    found: dict[str, None] = {}
    for name in packages:
        spec = find_spec(name)
        if spec is None:
            continue
        places = [str(Path(place).parent) for place in spec.submodule_search_locations or ()]
        if not places and spec.origin is not None:
            places = [str(Path(spec.origin).parent)]
        found.update(dict.fromkeys(places))
    return list(found)
