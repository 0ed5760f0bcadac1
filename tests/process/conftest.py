"""A real agent for the tests of all folders here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_driving import Driver
from lasting import LASTING
from orch_command import remove_variables


@pytest.fixture(scope="session")
def _kept_agents() -> Iterator[list[Driver]]:
    """The agent of this test process, once there is one. It starts in 0.2 s."""
    agents: list[Driver] = []
    yield agents
    for each in agents:
        _end(each)


def _start(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    with pytest.MonkeyPatch.context() as patch:
        remove_variables(patch)
        patch.delenv("XDG_STATE_HOME", raising=False)  # the mark of a test
        driver = Driver(tmp_path_factory.mktemp("agent")).__enter__()
    LASTING.add(driver.pid)
    return driver


def _end(driver: Driver) -> None:
    LASTING.discard(driver.pid)
    driver.__exit__()


@pytest.fixture
def agent(
    _kept_agents: list[Driver],
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Driver]:
    """An agent that serves a new run in `tmp_path`, and has served others. With ORCH_TEST_COLD=1, a new one."""
    driver = _kept_agents.pop() if _kept_agents else _start(tmp_path_factory)
    request.getfixturevalue("no_leaked_descriptors")
    try:
        with driver.run_in(tmp_path):
            yield driver
        if os.environ.get("ORCH_TEST_COLD") != "1":
            _kept_agents.append(driver)
    finally:
        if driver not in _kept_agents:
            _end(driver)


@pytest.fixture
def own_agent(tmp_path: Path, no_leaked_descriptors: None) -> Iterator[Driver]:
    """An agent of this test, which may end it."""
    with Driver(tmp_path) as driver:
        yield driver
