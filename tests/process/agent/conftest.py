"""Fixtures of the tests with a real agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_driving import Driver


@pytest.fixture(autouse=True)
def _clean(no_leaked_descriptors: None) -> None:
    """Descriptors are counted in every test here."""


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Driver]:
    with Driver(tmp_path) as driver:
        yield driver
