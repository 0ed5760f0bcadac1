"""Fixtures of the tests with a preloader."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# The agent's driver stands among the agent's own tests.
sys.path.append(str(Path(__file__).resolve().parents[1] / "agent"))


@pytest.fixture(autouse=True)
def _clean(no_leaked_descriptors: None) -> None:
    """Descriptors are counted in every test here."""
