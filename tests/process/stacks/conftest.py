"""Fixtures of the tests of stacks: a real agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from forking import Forking


@pytest.fixture
def agent(tmp_path: Path, no_leaked_descriptors: None) -> Iterator[Forking]:
    with Forking(tmp_path) as driver:
        yield driver
