"""The hubs of the runs that browsers show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from orchestrator.client.page.comparison import comparison
from orchestrator.client.page.document import RunPage
from orchestrator.client.page.pieces import json_bytes
from orchestrator.client.page.series import SeriesTail
from orchestrator.store.runs.reader import RunView
from orchestrator.ui.hub import Hub


class Hubs:
    """Holds a hub for each run that browsers show. `find` opens a run by its id; NoSuchRun."""

    def __init__(self, find: Callable[[str], RunView]) -> None:
        self._find = find
        self._hubs: dict[str, Hub] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening = asyncio.Lock()

    async def of(self, run_id: str) -> Hub:
        """Return the hub of this run. NoSuchRun."""
        async with self._opening:
            hub = self._hubs.get(run_id)
            if hub is None:
                hub = await asyncio.to_thread(self._open, run_id)
                self._hubs[run_id] = hub
                task = asyncio.create_task(self._follow(run_id, hub))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            return hub

    def _open(self, run_id: str) -> Hub:
        view = self._find(run_id)
        page = RunPage(view)
        return Hub(view, page, SeriesTail(view.paths, page.steps))

    def view(self, run_id: str) -> RunView | None:
        """Return the reader of a run that browsers show, once it has read the run."""
        hub = self._hubs.get(run_id)
        return None if hub is None else hub.shown_view

    def comparison(self, run_ids: Iterable[str]) -> bytes:
        """Return the document of a comparison of these runs. NoSuchRun."""
        documents = []
        for run_id in run_ids:
            page = RunPage(self._find(run_id))
            page.refresh()
            documents.append(page.document())
        return json_bytes(comparison(documents))

    def close(self) -> None:
        """End all feeds."""
        for hub in self._hubs.values():
            hub.close()

    async def _follow(self, run_id: str, hub: Hub) -> None:
        try:
            await hub.follow()
        finally:
            hub.close()
            self._hubs.pop(run_id, None)
