"""Checks that no process of an inner pytest session outlives it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from inner_session import processes_of
from waiting import until


@pytest.fixture(autouse=True)
def check_no_process_is_left(pytester: pytest.Pytester) -> Iterator[None]:
    """Processes that the plugin started end with the inner session, or soon after it was killed."""
    yield
    until(lambda: not processes_of(pytester.path))
