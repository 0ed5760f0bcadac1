"""An ordinary user, and whether there are private networks."""

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


@pytest.fixture
def ordinary_user(state_dir: Path) -> Iterator[User]:
    """A user who is not root: the user of the tests, or one that root switches to."""
    with User(ORDINARY if os.geteuid() == 0 else None, state_dir) as one:
        yield one
