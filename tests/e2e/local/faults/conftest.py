"""Runs each test of this folder in its own directory and checks for leaked descriptors."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_leaked_descriptors: None) -> Path:
    """The working directory, in which the tasks exchange files."""
    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory
