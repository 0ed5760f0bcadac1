"""A session for all tests of a module."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import Session


@contextlib.contextmanager
def kept_session(directory: Path) -> Iterator[Session]:
    """A session in this directory that has had a run, so that no test finds its processes as its own."""
    with contextlib.chdir(directory), Session() as session:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_STATE_HOME", str(directory))
            assert session.run(int) == [0]
        yield session
