"""Ages and durations use the monotonic clock, which cannot be set; the order of runs uses the wall clock and the id."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, closing

import pytest
from made_runs import Cli
from run_records import make_run, one_task

from orchestrator.client import api
from orchestrator.core.state import events
from orchestrator.store.runs import catalog
from orchestrator.store.runs.record import RunRecord
from orchestrator.store.runs.writer import RunStore


def with_clock(store: RunStore, started_at: float, mono: float | None = None) -> RunStore:
    """Change the recorded wall-clock time of the run's start, and the monotonic one if given."""
    record = RunRecord.model_validate_json(store.paths.record.read_bytes())
    changed = record.model_copy(
        update={"started_at": started_at, "started_mono": record.started_mono if mono is None else mono}
    )
    store.paths.record.write_text(changed.model_dump_json())
    return store


def test_newest_run_is_the_last_started_in_whatever_time_namespace() -> None:
    """The monotonic clock of a time namespace starts anywhere."""
    with ExitStack() as stack:
        second = stack.enter_context(closing(with_clock(make_run(), 2e9, mono=1.0)))
        first = stack.enter_context(closing(with_clock(make_run(), 1e9, mono=1e9)))
        found = [run.record.id for run in catalog.all_runs()]
        assert found == [first.paths.run_id, second.paths.run_id]
        assert api.find("job").id == second.paths.run_id


def test_runs_of_the_same_moment_are_ordered_by_id() -> None:
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(with_clock(make_run(), 1e9))) for _ in range(3)]
        found = [run.record.id for run in catalog.all_runs()]
        assert found == sorted(store.paths.run_id for store in stores)


@pytest.mark.parametrize("clock", [1.0, 4e9])
def test_ages_and_durations_are_independent_of_the_wall_clock(clock: float, cli: Cli) -> None:
    with closing(with_clock(make_run(), clock)) as store:
        began = time.monotonic()
        for event in one_task(began):
            store.append(event.model_copy(update={"at": clock}))
        store.append(
            events.TaskExited(
                at=clock - 1e6,
                mono=began + 2,
                task="worker:0",
                exit_code=0,
                signal=None,
                order=0,
                noticed_s=0,
                peers={},
            )
        )
        store.append(events.RunEndedEvent(at=clock - 2e6, mono=began + 3, outcome="succeeded", exit_code=0))
        status = json.loads(cli("status", store.paths.run_id, "--json").out)
        row = json.loads(cli("ls", "--all", "--json").out)["runs"][0]
        assert status["tasks"][0]["uptime_s"] == 2.0
        assert 3.0 <= status["run"]["uptime_s"] < 60.0
        assert 3.0 <= row["took_s"] < 60.0
        assert row["age_s"] < 60.0
