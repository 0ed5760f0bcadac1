"""`orch up --warm` in a new directory, or in one of all tests of a module. No process is left after the last test."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
from lasting import LASTING
from orch_command import Orch
from warm_command import ECHO, WarmOrch

# The supervisors that waited in a shared directory.
_HOLDERS: set[int] = set()


@pytest.fixture
def warm(orch: Orch) -> Iterator[WarmOrch]:
    command = WarmOrch(orch)
    yield command
    command.dismiss()


@pytest.fixture(scope="module")
def shared(shared_orch: Orch) -> Iterator[WarmOrch]:
    command = WarmOrch(shared_orch)
    yield command
    command.dismiss()
    LASTING.difference_update(_HOLDERS)


@pytest.fixture
def holder(shared: WarmOrch) -> psutil.Process:
    """The supervisor that waits in the shared directory."""
    shared("up", "--warm=1h", *ECHO)
    process = shared.until_waiting()
    _HOLDERS.add(process.pid)
    LASTING.add(process.pid)
    return process
