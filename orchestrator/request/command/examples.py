"""The examples: scripts in worker/examples, which `orch up` runs without a command and `orch example` writes."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.core.job.choices import Strategy

LOOPS = ("fit", "custom")
PARAMETER_SERVER_FIT = "parameter_server_fit.py"
# The scripts need these files beside them.
SHARED = ("common.py", "digits.npz", "DIGITS.md")
_SCRIPTS = ("fit.py", "custom_loop.py", "parameter_server.py", PARAMETER_SERVER_FIT, "dtensor.py")
_FIT_OF: Mapping[Strategy | None, str] = {Strategy.PARAMETER_SERVER: PARAMETER_SERVER_FIT}
_OTHER_LOOP_OF: Mapping[Strategy | None, str] = {
    Strategy.PARAMETER_SERVER: "parameter_server.py",
    Strategy.DTENSOR: "dtensor.py",
}


def example_of(strategy: Strategy | None, loop: str | None) -> str:
    """Return the script for a strategy and a loop (None: the one that Keras 3 supports). UsageError."""
    if strategy is Strategy.DTENSOR and loop == "fit":
        raise UsageError("--loop fit: Keras does not train with DTensor; leave it out")
    if loop == "custom" or (loop is None and strategy in _OTHER_LOOP_OF):
        return _OTHER_LOOP_OF.get(strategy, "custom_loop.py")
    return _FIT_OF.get(strategy, "fit.py")


def examples_directory() -> Path:
    """The directory of the scripts in the package `worker`, which is not imported."""
    spec = find_spec("worker")
    assert spec is not None and spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations))) / "examples"


def summaries() -> Mapping[str, str]:
    """The first line of each script, by its name for `orch example`: `custom-loop`."""
    texts = ((name, (examples_directory() / name).read_text(encoding="utf-8")) for name in _SCRIPTS)
    return {
        name.removesuffix(".py").replace("_", "-"): (ast.get_docstring(ast.parse(text)) or "").partition(
            "\n"
        )[0]
        for name, text in texts
    }
