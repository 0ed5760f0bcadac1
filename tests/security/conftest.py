"""Fixtures of the tests with private networks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from users import ORDINARY, User

from orchestrator.host.network import probe_private_network


@pytest.fixture(scope="session")
def private_network() -> None:
    """Skip where the kernel refuses private networks, as in most containers and for Ubuntu's users.

    Another test checks that this answer is true."""
    if (refused := probe_private_network()) is not None:
        pytest.skip(refused.reason)


@pytest.fixture(params=["root", "ordinary"])
def user(request: pytest.FixtureRequest, state_dir: Path) -> Iterator[User]:
    """Root and an ordinary user: the user of the tests, or one that root switches to."""
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    with User(None if os.geteuid() == 0 and request.param == "root" else _ordinary(), state_dir) as one:
        yield one


@pytest.fixture
def ordinary_user(state_dir: Path) -> Iterator[User]:
    """A user who is not root."""
    with User(_ordinary(), state_dir) as one:
        yield one


def _ordinary() -> int | None:
    return ORDINARY if os.geteuid() == 0 else None
