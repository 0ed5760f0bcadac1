"""Tells fuzzing.py whether this is the gate or a longer proof."""

from __future__ import annotations

import fuzzing
import pytest


def pytest_configure(config: pytest.Config) -> None:
    fuzzing.is_thorough = not config.getoption("-m")
