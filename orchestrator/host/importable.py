"""Asks an interpreter whether it finds modules, such as those of --preload, without importing them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.core.text.nearest import did_you_mean

# Seconds. It takes a tenth of a second on an idle machine.
_PATIENCE_S = 10.0
# Prints null, or the first missing module and all names. It runs under -I: no module of the directories on the path is
# imported. The modules of a package are not looked up, because some packages make them when they are imported.
_PROGRAM = """
import json, pkgutil, site, sys
from importlib import machinery, util
if sys.prefix == sys.base_prefix and not sys.flags.no_site:
    site.addsitedir(site.getusersitepackages())
names, places = json.loads(sys.argv[1]), sys.argv[2:] + sys.path

def is_missing(name):
    try:
        return (machinery.PathFinder.find_spec(name, places) or util.find_spec(name)) is None
    except Exception:
        return False

missing = [name for name in names if is_missing(name)]
known = [found.name for found in pkgutil.iter_modules(places)] if missing else []
print("\\n" + json.dumps([missing[0], [*known, *sys.builtin_module_names]] if missing else None))
"""


def require_modules(
    modules: Sequence[str],
    source: str,
    python: Sequence[str],
    *,
    first: Path,
    cwd: Path,
    environ: Mapping[str, str],
    otherwise: str = "",
) -> None:
    """Raise a UsageError that names `source` if `python` (with its options) does not find one of `modules`.

    `first`: the first directory on the path; `environ` is the tasks', of which only PYTHONPATH counts. An interpreter
    that does not answer refuses nothing. `otherwise`: what to do if one is missing, instead of a similar name.
    """
    search = "" if {"-E", "-I"} & set(python) else environ.get("PYTHONPATH", "")
    places = [str(first), *(str(cwd / place) for place in search.split(os.pathsep) if place)]
    tops = list(dict.fromkeys(module.partition(".")[0] for module in modules))
    try:
        answer = subprocess.run(
            [*python, "-I", "-c", _PROGRAM, json.dumps(tops), *places],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=True,
        ).stdout
        # The last line: a sitecustomize may print something before it.
        missing = json.loads(answer.decode(errors="replace").rstrip().rpartition("\n")[2])
        if missing is None:
            return
        name, known = str(missing[0]), [str(one) for one in missing[1]]
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, IndexError):
        return
    hint = otherwise or did_you_mean(name, sorted(known), "install it, or leave the option out")
    raise UsageError(f"{source}: {python[0]} has no module {name}; {hint}")
