"""The hub of a run: what it keeps for browsers is bounded, and so is the time that it takes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pages import WrittenRun
from run_records import view_of

from orchestrator.client.page.clock import RunClock
from orchestrator.store.runs.reader import RunView
from orchestrator.ui.browser import State
from orchestrator.ui.hub import Hub

POINT_BYTES = 100_000


class Busy:
    """The page and the curves of a run that has news at every look. A look takes `cost_s` of a core."""

    def __init__(self, cost_s: float = 0.0) -> None:
        self.clock = RunClock(0.0, 0.0)
        self.looks: list[float] = []
        self._cost_s = cost_s

    def refresh(self) -> bool:
        self.looks.append(time.monotonic())
        until = time.thread_time() + self._cost_s
        while time.thread_time() < until:
            pass
        return True

    def changed_parts(self) -> Iterator[tuple[str, Any]]:
        yield "made_at", time.time()
        yield "run", {"looks": len(self.looks), "uptime_s": time.monotonic()}

    def parts(self, most_points: int) -> Iterator[tuple[str, Any]]:
        return self.changed_parts()

    def skip(self) -> None:
        pass

    def new_rows(self) -> dict[str, Any]:
        columns = {"time": [len(self.looks)], "text": ["x" * POINT_BYTES]}
        return {"metrics": [], "tasks": {"worker:0": columns}}


@pytest.fixture
def view() -> Iterator[RunView]:
    with WrittenRun(1) as run:
        yield view_of(run.store.paths)


async def first_event(hub: Hub, state: str) -> tuple[str, Any]:
    """Return what a browser of this state gets first."""
    feed = hub.feed(State.parse(state))
    lines = (await anext(feed)).decode().splitlines()
    await feed.aclose()  # type: ignore[attr-defined]
    found = dict(line.split(": ", 1) for line in lines if line)
    return found["event"], json.loads(found["data"])


def test_browser_that_is_behind_gets_the_points_that_are_kept_or_reads_the_run_again(view: RunView) -> None:
    async def watch() -> None:
        page = Busy()
        hub = Hub(view, page, page)
        states = [json.loads(await hub.document())["feed"] + ".0" for _ in range(100)]
        kind, data = await first_event(hub, states[-3])
        assert kind == "change" and data["run"]["looks"] == 100
        assert [series["tasks"]["worker:0"]["time"] for series in data["series"]] == [[99], [100]]
        assert await first_event(hub, states[1]) == ("reload", {})
        assert sum(len(points) for points in hub.points_after(0)) < 4_000_000

    asyncio.run(watch())


def test_looks_that_take_long_are_rare(view: RunView) -> None:
    async def watch() -> None:
        page = Busy(cost_s=0.05)
        hub = Hub(view, page, page)
        following = asyncio.create_task(hub.follow())
        while len(page.looks) < 3:
            await asyncio.sleep(0.01)
        hub.close()
        await following
        # Twenty times as long as a look.
        assert page.looks[2] - page.looks[1] >= 1

    asyncio.run(watch())
