"""Starts the supervisor of `orch up` before the command line is parsed.

Supervisor and client then import their modules at the same time, which takes each of them a third of a second. Whether
the words start a run is only a guess at this point. A supervisor that is not needed is killed: it has no request yet.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.links.supervisor_link import SupervisorLink

_STARTS_NOTHING = {"-h", "--help", "--dry-run"}
_started: SupervisorLink | None = None


@contextmanager
def early_supervisor(words: Sequence[str]) -> Iterator[None]:
    """Start a supervisor if `words`, the arguments of `orch`, seem to start a run. Close it at the end of the block."""
    global _started
    if _started is None and _seem_to_start(words):
        from orchestrator.core.errors import EngineError
        from orchestrator.links.supervisor_link import start_supervisor

        with suppress(EngineError):  # reported when the run needs it
            _started = start_supervisor()
        gc.disable()  # until run_up(): imports create no garbage
    try:
        yield
    finally:
        gc.enable()
        if _started is not None:
            _started.close()
            _started = None


def use_supervisor(supervisor: SupervisorLink | None) -> None:
    """Make `orch up` in this process start its run over this link, to a supervisor that is kept. None: a new one."""
    global _started
    _started = supervisor


def supervisor_of_up() -> SupervisorLink | None:
    """Return the supervisor that was started early, or a new one; None if warm processes seem to wait. EngineError."""
    from orchestrator.links.supervisor_link import start_supervisor

    return _started or (None if may_start_warm() else start_supervisor())


def _seem_to_start(words: Sequence[str]) -> bool:
    own = words[: words.index("--")] if "--" in words else words
    # If a standard stream is closed, the next file that is opened gets its number.
    has_streams = None not in (sys.stdin, sys.stdout, sys.stderr)
    return "up" in own[:1] and _STARTS_NOTHING.isdisjoint(own) and has_streams and not may_start_warm()


def may_start_warm() -> bool:
    """Whether warm processes seem to wait in this directory. Quick if none do, because every start calls it."""
    if not any(map(os.isatty, (0, 1, 2))):
        return False
    from orchestrator.store.runs.paths import has_warm_socket

    with suppress(OSError):  # the directory may be gone, which is reported later
        return has_warm_socket(str(Path.cwd()))
    return False
