"""Fixtures of the tests of pruning."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _clean(no_leaked_descriptors: None) -> None:
    """Check for leaked descriptors in every test of this folder."""
