"""Agents of "another host" that is this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from host_driving import HostDriver


@pytest.fixture
def host(tmp_path: Path, no_leaked_descriptors: None) -> Iterator[HostDriver]:
    with HostDriver(tmp_path) as driver:
        yield driver
