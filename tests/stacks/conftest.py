"""Fixtures of the tests of stacks: a real agent."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The drivers of the agent, of the preloader and of the installed command stand among their own tests.
for _folder in ("agent", "preload", "e2e"):
    sys.path.append(str(Path(__file__).resolve().parents[1] / _folder))

from forking import Forking  # noqa: E402
from orch_command import Orch  # noqa: E402


@pytest.fixture
def agent(tmp_path: Path, no_leaked_descriptors: None) -> Iterator[Forking]:
    with Forking(tmp_path) as driver:
        yield driver


@pytest.fixture
def orch(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Orch]:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TERM"):
        monkeypatch.delenv(name, raising=False)
    directory = tmp_path / "here"
    directory.mkdir()
    command = Orch(directory, state_dir)
    yield command
    command.end_all()
