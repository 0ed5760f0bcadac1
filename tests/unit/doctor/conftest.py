"""A machine without problems, made of files and values, to be changed by a test."""

from __future__ import annotations

from pathlib import Path

import pytest
from healthy_machine import HealthyMachine


@pytest.fixture
def machine(tmp_path: Path, state_dir: Path) -> HealthyMachine:
    return HealthyMachine(tmp_path / "root", state_dir / "orch")
