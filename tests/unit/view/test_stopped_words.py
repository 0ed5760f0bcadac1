"""The line of `orch down` about a run that it stopped."""

from __future__ import annotations

import pytest

from orchestrator.cli.selection import ended_text
from orchestrator.client.stop import Ended


@pytest.mark.parametrize(("count", "named"), [(2, "worker:0, worker:1"), (1000, "1,000 tasks")])
def test_many_stopped_tasks_are_counted(count: int, named: str) -> None:
    tasks = tuple(f"worker:{index}" for index in range(count))
    assert (
        ended_text(Ended("digits-1", tasks, 0, was_live=True))
        == f"digits-1: stopped {named}; no process is left"
    )
