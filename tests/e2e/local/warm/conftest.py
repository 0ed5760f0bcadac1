"""`orch up --warm` in a new directory. No process is left after a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from orch_command import Orch
from warm_command import WarmOrch


@pytest.fixture
def warm(orch: Orch) -> Iterator[WarmOrch]:
    command = WarmOrch(orch)
    yield command
    command.dismiss()
