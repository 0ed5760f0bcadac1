"""Fixtures of the tests with a preloader."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _clean(no_leaked_descriptors: None) -> None:
    """Descriptors are counted in every test here."""
