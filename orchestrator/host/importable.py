"""Asks an interpreter whether it can import modules, such as those of --preload."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.core.text.nearest import did_you_mean

# Seconds. It takes a tenth of a second on an idle machine, more if the parent of a module takes long to import.
_PATIENCE_S = 20.0
# Their modules are partly made at run time, and their import takes seconds: only the package is looked up.
_SLOW = ("tensorflow", "keras", "tf_keras")
# Prints null, or the first missing module with the names of those beside it. The directory that -c adds to the path is
# replaced by that of the script.
_PROGRAM = """
import importlib.util, json, pkgutil, sys
question = json.loads(sys.argv[1])
if sys.path[:1] == [""]:
    sys.path[0] = question["first"]

def is_missing(name):
    top = name.partition(".")[0]
    try:
        if importlib.util.find_spec(top) is None:
            return True
        return top not in question["slow"] and importlib.util.find_spec(name) is None
    except ModuleNotFoundError as error:
        return error.name is not None and name.startswith(error.name)
    except Exception:
        return False

def beside(name):
    parent = name.rpartition(".")[0]
    if not parent:
        return [*(found.name for found in pkgutil.iter_modules()), *sys.builtin_module_names]
    if is_missing(parent):
        return beside(parent)
    paths = getattr(sys.modules.get(parent), "__path__", ())
    return [parent + "." + found.name for found in pkgutil.iter_modules(paths)]

missing = [name for name in question["modules"] if is_missing(name)]
print("\\n" + json.dumps([missing[0], beside(missing[0])] if missing else None))
"""


def require_modules(
    modules: Sequence[str],
    source: str,
    python: Sequence[str],
    *,
    first: Path,
    cwd: Path,
    environ: Mapping[str, str],
) -> None:
    """Raise a UsageError that names `source` if `python` (with its options) cannot import one of `modules`.

    `first`: the first directory on the path. An interpreter that does not answer refuses nothing.
    """
    question = json.dumps({"modules": modules, "first": str(first), "slow": _SLOW})
    try:
        answer = subprocess.run(
            [*python, "-c", _PROGRAM, question],
            cwd=cwd,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=True,
        ).stdout
        # The last line: what is imported may print something before it.
        missing = json.loads(answer.decode(errors="replace").rstrip().rpartition("\n")[2])
        if missing is None:
            return
        name, known = str(missing[0]), [str(one) for one in missing[1]]
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, IndexError):
        return
    hint = did_you_mean(name, sorted(known), "install it, or leave the option out")
    raise UsageError(f"{source}: {python[0]} has no module {name}; {hint}")
