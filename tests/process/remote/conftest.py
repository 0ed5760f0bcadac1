"""Agents of "another host" that is this machine, with a cache of bundles for all tests here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from host_driving import HostDriver


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path_factory.getbasetemp() / "bundle-cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory))
    return directory / "orch" / "bundles"


@pytest.fixture
def host(tmp_path: Path, no_leaked_descriptors: None) -> Iterator[HostDriver]:
    with HostDriver(tmp_path) as driver:
        yield driver
