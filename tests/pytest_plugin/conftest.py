"""Nothing that an inner session started outlives it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from inner_session import processes_of
from waiting import until


@pytest.fixture(autouse=True)
def none_outlives_its_session(pytester: pytest.Pytester) -> Iterator[None]:
    """Whatever the plugin started in a test is gone when its pytest is, or soon after that was killed."""
    yield
    until(lambda: not processes_of(pytester.path))
