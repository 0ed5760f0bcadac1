"""Measures `orchestrator` in every process that imports it: scripts/tools/coverage makes each run this file first.

Supervisors start with `-I -S` and read no .pth file: the process that starts one passes the measuring on.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, SupportsIndex

# Variables: the directory for the data, and the one that coverage.py is installed in.
INTO, INSTALLED = "MEASURE_ORCH_INTO", "MEASURE_ORCH_WITH"
_TREE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))  # noqa: PTH120


def watch() -> None:
    """Start to measure when `orchestrator` is imported; other processes are not changed."""
    # An interpreter may read the .pth file twice, each time with a new class.
    is_watching = any(type(finder).__name__ == _FirstImport.__name__ for finder in sys.meta_path)
    if INTO in os.environ and not is_watching:
        sys.meta_path = _FirstStaysFirst([_FirstImport(), *sys.meta_path])


class _FirstStaysFirst(list[Any]):
    """A list of finders that keeps its first one: pytest inserts its own, which would find `orchestrator` first."""

    def insert(self, index: SupportsIndex, finder: Any) -> None:
        is_pytests = type(finder).__module__.startswith("_pytest")
        super().insert(max(1, int(index)) if is_pytests else index, finder)


class _FirstImport(MetaPathFinder):
    """Finds nothing; it sees each import before it happens."""

    def __repr__(self) -> str:
        return "measures orchestrator"  # the same in each process, because some tests compare two of them

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "orchestrator":
            _begin()
        if name != "orchestrator.host.isolation":
            return None
        spec = PathFinder.find_spec(name, path)  # type: ignore[arg-type]
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_pass_on(module: ModuleType) -> None:
            load(module)
            module._START = f"import runpy; runpy.run_path({__file__!r})['watch'](); {module._START}"  # type: ignore[attr-defined]

        spec.loader.exec_module = load_and_pass_on  # type: ignore[method-assign]
        return spec


def _begin() -> None:
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return  # coverage.py needs a directory
    if os.environ[INSTALLED] not in sys.path:
        sys.path.append(os.environ[INSTALLED])
    import coverage

    measuring = coverage.Coverage(
        data_file=f"{os.environ[INTO]}/part",
        data_suffix=True,
        config_file=False,
        branch=True,
        source=[f"{_TREE}/orchestrator"],
        auto_data=True,
    )
    measuring.set_option("run:patch", ["_exit"])  # supervisors exit by os._exit
    measuring.set_option("run:disable_warnings", ["no-data-collected", "module-not-measured"])
    measuring.start()
