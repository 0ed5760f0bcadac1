"""A cell of the matrix: a fault, its moment, and how the run must end. run_cell() checks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import leftovers
from cell_failure import Kind, NotAvailable, require
from injections import Injection
from scene import Moment, Scene, Who
from small_disk_cells import run_on_small_disk

from orchestrator.client import api
from orchestrator.core.state.result import CauseKind, Outcome, RunResult
from orchestrator.host.network import probe_private_network

Culprit = Literal[Who.VICTIM, Who.PEERS]
Check = Callable[[Scene, RunResult], None]


@dataclass(frozen=True)
class Ends:
    """How a run must end. `cause` and `first`: the victim, its peers, or no task (None). `kind` None: no cause."""

    outcome: Outcome
    exit_code: int
    cause: Culprit | None = None
    kind: CauseKind | None = None
    first: Culprit | None = None
    attempts: int = 1

    def __str__(self) -> str:
        words = f"{self.outcome}, {self.exit_code}"
        if self.kind is not None:
            words += f"; cause: {self.cause or 'none of the tasks'}, {self.kind}"
        if self.attempts > 1:
            words += f"; attempt {self.attempts}"
        return words


def failed(
    code: int,
    cause: Culprit | None = Who.VICTIM,
    kind: CauseKind = CauseKind.EXITED,
    first: Culprit | None = Who.VICTIM,
    attempts: int = 1,
) -> Ends:
    return Ends("failed", code, cause, kind, first, attempts)


def timed_out(cause: Culprit | None, kind: CauseKind) -> Ends:
    return Ends("timed_out", 124, cause, kind)


def succeeded(attempts: int = 1) -> Ends:
    return Ends("succeeded", 0, attempts=attempts)


def stopped(code: int = 143, attempts: int = 1) -> Ends:
    return Ends("stopped", code, attempts=attempts)


ORCH_FAILED = failed(125, None, CauseKind.ORCH, None)
LOST = Ends("lost", 125, None, CauseKind.ORCH)


@dataclass(frozen=True)
class Cell:
    """One fault at one moment, and how the run must end.

    `breaks`: what the tasks do themselves; `inject`: what is done from outside; `client`: the exit code of a foreground
    `orch up` (None: the run belongs to this process); `vanishes`: the run's directory is removed; `or_ends`: another
    allowed end, where the order of events is open; `disk_bytes`: size of the disk with orch's files; `check`: further
    checks.
    """

    fault: str
    moment: Moment
    ends: Ends
    breaks: str = "nothing"
    inject: Injection | None = None
    client: int | None = None
    victim: int = 1
    workers: int = 2
    times: int = 1
    options: Mapping[str, object] = field(default_factory=dict)
    vanishes: bool = False
    or_ends: Ends | None = None
    disk_bytes: int | None = None
    check: Check | None = None

    @property
    def name(self) -> str:
        return f"{self.fault} | {self.moment}"


def cells(fault: str, moments: Iterable[Moment] | Moment, ends: Ends, **fields: object) -> tuple[Cell, ...]:
    """The same fault at several moments, with the same end."""
    each = (moments,) if isinstance(moments, Moment) else tuple(moments)
    return tuple(Cell(fault, moment, ends, **fields) for moment in each)  # type: ignore[arg-type]


def run_cell(cell: Cell, directory: Path, make: type[Scene] = Scene) -> None:
    """Run one cell in `directory`. CellFailure (or AssertionError) for any finding, NotAvailable if it cannot run here.

    `make`: the kind of tasks. XDG_STATE_HOME must belong to this cell alone.
    """
    if cell.disk_bytes is not None:
        run_on_small_disk(cell, directory)
    else:
        run_here(cell, directory, make)


def run_here(cell: Cell, directory: Path, make: type[Scene] = Scene) -> None:
    """Run a cell in this process, on any disk."""
    require_possible(cell.options)
    here = directory / "here"
    here.mkdir()
    scene = make(
        here,
        cell.moment,
        cell.breaks,
        cell.victim,
        cell.workers,
        cell.times,
        as_command=cell.client is not None,
        options=cell.options,
    )
    with scene.started(), scene.run.view.keep_open() if cell.vanishes else nullcontext():
        scene.reach_the_moment()
        if cell.inject is not None:
            cell.inject(scene)
        result = scene.result()
        if result.outcome != "lost":
            leftovers.require_no_task_left(scene)
        if scene.client is not None:
            code = scene.client.wait(leftovers.GONE_WITHIN_S)
            require(
                code == cell.client, Kind.EXIT_CODE, f"{code}, not {cell.client}: {scene.client_output()}"
            )
    ends = cell.ends
    if cell.or_ends is not None and result.outcome == cell.or_ends.outcome:
        ends = cell.or_ends
    check_end(ends, scene, result)
    if result.outcome == "lost":
        # The next command tidies up after a killed supervisor.
        api.tidy()
    elif not cell.vanishes:
        leftovers.require_whole_events(scene)
    leftovers.require_nothing_left(scene)
    if cell.vanishes:
        require(not scene.run.dir.exists(), Kind.FILE, scene.run.dir)
    else:
        _require_consistent_result(scene, result)
    if cell.check is not None:
        cell.check(scene, result)


def require_possible(options: Mapping[str, object]) -> None:
    """NotAvailable if this machine does not allow these options."""
    if options.get("network") == "private" and (refused := probe_private_network()) is not None:
        raise NotAvailable(refused.reason)


def _require_consistent_result(scene: Scene, result: RunResult) -> None:
    """CellFailure unless result.json, the status and the returned result agree."""
    written, shown = scene.run.view.result(), scene.run.status().run.state
    require(written == result, Kind.EVENTS, f"written {written}, returned {result}")
    require(shown == result.outcome, Kind.EVENTS, f"{shown}, not {result.outcome}")


def check_end(ends: Ends, scene: Scene, result: RunResult) -> None:
    """CellFailure unless the run ended as it must."""
    cause, first = result.cause, result.first_failure
    for kind, seen, wanted in (
        (Kind.OUTCOME, result.outcome, ends.outcome),
        (Kind.EXIT_CODE, result.exit_code, ends.exit_code),
        (Kind.CAUSE, None if cause is None else cause.kind, ends.kind),
        (Kind.CAUSE, None if cause is None else _culprit(cause.task, scene), ends.cause),
        (Kind.CAUSE, None if first is None else _culprit(first.task, scene), ends.first),
        (Kind.CAUSE, result.attempts, ends.attempts),
    ):
        require(seen == wanted, kind, f"{seen}, not {wanted}, in {result.model_dump_json(indent=1)}")


def _culprit(task: str | None, scene: Scene) -> Culprit | None:
    if task is None:
        return None
    return Who.VICTIM if task == scene.victim_name else Who.PEERS
