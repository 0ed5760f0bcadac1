"""Fixtures that several directories of tests use. The root conftest loads them as a plugin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from orch_command import Orch
from tensorflow_forks import ForkServer


@pytest.fixture
def orch(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Orch]:
    """The `orch` command in a new directory, with its own state directory. Its runs are ended after the test."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TERM"):
        monkeypatch.delenv(name, raising=False)
    directory = tmp_path / "here"
    directory.mkdir()
    command = Orch(directory, state_dir)
    yield command
    command.end_all()


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """Starts programs with TensorFlow imported. For tests that do not test the start itself."""
    server = ForkServer(Path(__file__).resolve().parents[2])
    yield server
    server.close()
