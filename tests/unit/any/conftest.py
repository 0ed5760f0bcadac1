"""Tells fuzzing.py whether this is the gate or a longer proof."""

from __future__ import annotations

from pathlib import Path

import fuzzing
import pytest


def pytest_configure(config: pytest.Config) -> None:
    fuzzing.is_thorough = not config.getoption("-m")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory for all examples of a test."""
    return tmp_path
