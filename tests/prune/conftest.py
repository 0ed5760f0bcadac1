"""Fixtures of the tests of pruning."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Run directories and the installed command are made by other tests' means.
sys.path += [str(Path(__file__).resolve().parents[1] / name) for name in ("runs", "e2e")]


@pytest.fixture(autouse=True)
def _clean(no_leaked_descriptors: None) -> None:
    """Descriptors are counted in every test here."""
