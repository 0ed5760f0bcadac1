"""orch: a launcher for TensorFlow on several workers. The Python API; see orchestrator.client.api."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.client.api import Run, down, find, history, ls, status
    from orchestrator.client.launch import Cluster
    from orchestrator.client.session import Session, run
    from orchestrator.core.errors import (
        EngineError,
        NameTaken,
        NoSuchRun,
        OrchError,
        RunEnded,
        RunLost,
        RunStopped,
        RunTimedOut,
        TaskFailed,
        UsageError,
    )
    from orchestrator.core.state.result import RunResult
    from orchestrator.request.settings.keywords import RoleOptions, UpOptions

_MODULES = {
    "orchestrator.client.api": "Run down find history ls status",
    "orchestrator.client.launch": "Cluster",
    "orchestrator.client.session": "Session run",
    "orchestrator.core.errors": "EngineError NameTaken NoSuchRun OrchError RunEnded RunLost RunStopped RunTimedOut"
    " TaskFailed UsageError",
    "orchestrator.core.state.result": "RunResult",
    "orchestrator.request.settings.keywords": "RoleOptions UpOptions",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "Cluster",
    "EngineError",
    "NameTaken",
    "NoSuchRun",
    "OrchError",
    "RoleOptions",
    "Run",
    "RunEnded",
    "RunLost",
    "RunResult",
    "RunStopped",
    "RunTimedOut",
    "Session",
    "TaskFailed",
    "UpOptions",
    "UsageError",
    "down",
    "find",
    "history",
    "ls",
    "run",
    "status",
]


def __getattr__(name: str) -> object:
    """Import a name when it is first used, so that `orch --help` does not import all of them."""
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
