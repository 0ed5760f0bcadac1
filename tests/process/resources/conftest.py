"""Fixtures for tests that run out of a resource: a small disk, control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_groups import MemoryGroup, NoGroup, ProcessGroup
from small_disk import NoDisk, SmallDisk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of 2 MiB that only the commands started on it can see."""
    try:
        with SmallDisk(tmp_path / "disk", 2 << 20) as small:
            yield small
    except NoDisk as reason:
        pytest.skip(str(reason))


@pytest.fixture
def memory_group() -> Iterator[MemoryGroup]:
    """A control group with 160 MiB. orch itself takes 70, and more while it compiles its modules."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make a control group")
    try:
        with MemoryGroup(160 << 20) as group:
            yield group
    except NoGroup as reason:
        pytest.skip(str(reason))


@pytest.fixture
def processes() -> Iterator[ProcessGroup]:
    try:
        with ProcessGroup() as group:
            yield group
    except NoGroup as reason:
        pytest.skip(str(reason))
