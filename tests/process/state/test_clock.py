"""Ages and durations use the monotonic clock, which cannot be set; the order of runs uses the wall clock and the id."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, closing
from typing import Any

from making import exited
from orch_command import Orch
from run_records import make_run, one_task

from orchestrator.client import api
from orchestrator.core.state import events
from orchestrator.store.runs import catalog
from orchestrator.store.runs.writer import RunStore


def with_clock(store: RunStore, **fields: float) -> RunStore:
    """Change the recorded times of the run's start: `started_at` (wall clock), `started_mono`."""
    document: dict[str, Any] = json.loads(store.paths.record.read_text())
    store.paths.record.write_text(json.dumps({**document, **fields}))
    return store


def test_runs_are_ordered_by_the_wall_clock_and_by_id() -> None:
    """The monotonic clock of a time namespace starts anywhere."""
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(make_run())) for _ in range(4)]
        second = with_clock(stores[0], started_at=2e9, started_mono=1.0).paths.run_id
        first = with_clock(stores[1], started_at=1e9, started_mono=1e9).paths.run_id
        same = sorted(with_clock(store, started_at=1.5e9).paths.run_id for store in stores[2:])
        assert [run.record.id for run in catalog.all_runs()] == [first, *same, second]
        assert api.find("job").id == second


def test_ages_and_durations_are_independent_of_the_wall_clock(orch: Orch) -> None:
    for clock in (1.0, 4e9):
        with closing(with_clock(make_run(), started_at=clock)) as store:
            began = time.monotonic()
            for event in one_task(began):
                store.append(event.model_copy(update={"at": clock}))
            store.append(exited(0, mono=began + 2).model_copy(update={"at": clock - 1e6}))
            store.append(
                events.RunEndedEvent(at=clock - 2e6, mono=began + 3, outcome="succeeded", exit_code=0)
            )
            status = orch("status", store.paths.run_id, "--json").document
            rows = {row["id"]: row for row in orch("ls", "--all", "--json").document["runs"]}
        row = rows[store.paths.run_id]
        assert status["tasks"][0]["uptime_s"] == 2.0
        assert 3.0 <= status["run"]["uptime_s"] < 60.0
        assert 3.0 <= row["took_s"] < 60.0 and row["age_s"] < 60.0
