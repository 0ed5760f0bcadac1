"""Fixtures of the tests that run out of something: disks of a few hundred KiB, groups with little memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The installed command and the agent's driver stand among their own tests.
sys.path += [str(Path(__file__).resolve().parents[1] / name) for name in ("agent", "e2e")]

from memory_group import MemoryGroup, NoGroup
from orch_command import Orch
from small_disk import NoDisk, SmallDisk


@pytest.fixture
def orch(tmp_path: Path, state_dir: Path) -> Iterator[Orch]:
    directory = tmp_path / "here"
    directory.mkdir()
    command = Orch(directory, state_dir)
    yield command
    command.end_all()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of 2 MiB that only what is started on it sees."""
    try:
        with SmallDisk(tmp_path / "disk", 2 << 20) as small:
            yield small
    except NoDisk as reason:
        pytest.skip(str(reason))


@pytest.fixture
def memory_group() -> Iterator[MemoryGroup]:
    """A control group with 100 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a control group")
    try:
        with MemoryGroup(100 << 20) as group:
            yield group
    except NoGroup as reason:
        pytest.skip(str(reason))
