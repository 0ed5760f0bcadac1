"""The tests of the run directory count descriptors."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _clean(no_leaked_descriptors: None) -> None:
    """Descriptors are counted in every test here."""
