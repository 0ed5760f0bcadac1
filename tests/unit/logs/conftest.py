"""Fixtures of the log tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from log_making import Writer


@pytest.fixture
def writer(tmp_path: Path, no_leaked_descriptors: None) -> Iterator[Writer]:
    made = Writer(tmp_path)
    yield made
    made.close()
