"""A real agent for the tests of all folders here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_driving import Driver
from lasting import LASTING
from orch_command import remove_variables


@pytest.fixture(scope="session")
def _kept_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """The agent of this test process, which starts in 0.2 s."""
    with pytest.MonkeyPatch.context() as patch:
        remove_variables(patch)
        driver = Driver(tmp_path_factory.mktemp("agent"))
    with driver:
        LASTING.add(driver.pid)
        yield driver
        LASTING.discard(driver.pid)


@pytest.fixture
def agent(_kept_agent: Driver, tmp_path: Path, no_leaked_descriptors: None) -> Iterator[Driver]:
    """An agent that serves a new run in `tmp_path`, and has served others."""
    with _kept_agent.run_in(tmp_path):
        yield _kept_agent


@pytest.fixture
def own_agent(tmp_path: Path, no_leaked_descriptors: None) -> Iterator[Driver]:
    """An agent of this test, which may end it."""
    with Driver(tmp_path) as driver:
        yield driver
