"""Runs with faults at random times. Each fault allows certain ends of the run and no others."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import cells
import leftovers
from cell_run import check_end, require_possible
from cells import LOST, ORCH_FAILED, Cell, CellFailure, Ends, Kind, Moment, Who, require
from scene import Scene

from orchestrator.client import api
from orchestrator.core.state.result import CauseKind, RunResult


@dataclass(frozen=True)
class RandomFault:
    """Sends `number` to `who` when the run is `at_s` seconds old; `who` None is `down`, forced if `number` is set."""

    at_s: float
    who: Who | None
    number: signal.Signals | None

    def __str__(self) -> str:
        what = f"{self.number.name} to the {self.who}" if self.who and self.number else "down"
        return f"{what} at {self.at_s:.2f} s"

    @property
    def ends(self) -> tuple[Ends, ...]:
        match self.who, self.number:
            case Who.VICTIM, signal.SIGKILL:
                return (cells.failed(137),)
            case Who.VICTIM, signal.SIGSTOP:
                stalls = [
                    cells.timed_out(Who.VICTIM, kind) for kind in (CauseKind.STOPPED, CauseKind.STALLED)
                ]
                return (*stalls, cells.timed_out(None, CauseKind.LIMIT))
            case Who.VICTIM, _:
                # Before Python's first line the signal itself kills the process: 143 as well.
                return (cells.failed(143),)
            case Who.AGENT, _:
                return (ORCH_FAILED,)
            case Who.SUPERVISOR, signal.SIGKILL:
                return (LOST,)
        return (cells.stopped(130 if (self.who, self.number) == (Who.CLIENT, signal.SIGINT) else 143),)

    def inject(self, scene: Scene) -> None:
        """Inject the fault now. It has no effect if the process has exited or has not started."""
        if self.who is None:
            scene.order_stop(force=self.number is not None)
            return
        found = scene.task_pids(Who.VICTIM) if self.who is Who.VICTIM else [scene.pid_of(self.who)]
        for pid in found:
            with suppress(ProcessLookupError):
                if pid is not None and self.number is not None:
                    os.kill(pid, self.number)


@dataclass(frozen=True)
class RandomRun:
    """A run of `workers` that takes about a second without faults."""

    faults: tuple[RandomFault, ...]
    workers: int
    victim: int
    options: Mapping[str, object] = field(default_factory=dict)
    more_ends: tuple[Ends, ...] = ()

    @property
    def name(self) -> str:
        setup = f"{self.workers} workers, the victim {self.victim}"
        options = "".join(f", {name} {value}" for name, value in self.options.items())
        return f"{'; '.join(map(str, self.faults))} ({setup}{options})"

    @property
    def ends(self) -> frozenset[Ends]:
        """The allowed ends. A fault may come too late, or before the others, and in any attempt."""
        plain = {cells.succeeded(), *(end for fault in self.faults for end in fault.ends), *self.more_ends}
        # A fault may come before the first attempt.
        early = [end for end in plain if end.first is None and end.outcome != "succeeded"]
        plain |= {replace(end, attempts=0) for end in early}
        if "on_failure" not in self.options:
            return frozenset(plain)
        attempts = range(1, 2 + len(self.faults) + len(self.more_ends))
        again = {replace(end, attempts=attempt) for end in plain for attempt in attempts}
        # Between two attempts, and when other tasks continue, the first failure remains.
        return frozenset(again | {replace(end, first=Who.VICTIM) for end in again if end.first is None})


def run_random(random_run: RandomRun, directory: Path) -> None:
    """Run it as run_cell() does; CellFailure unless it ends in one of the allowed ways."""
    options = {"grace": "2s", **random_run.options}
    drawn = {
        "breaks": "works",
        "victim": random_run.victim,
        "workers": random_run.workers,
        "options": options,
    }
    cell = Cell(random_run.name, Moment.TRAINING, None, **drawn)  # type: ignore[arg-type]
    require_possible(cell)
    here = directory / "here"
    here.mkdir()
    scene = Scene(cell, here)
    scene.touch("break")
    with scene.started():
        began = time.monotonic()
        for fault in sorted(random_run.faults, key=lambda each: each.at_s):
            while time.monotonic() < began + fault.at_s and not scene.has_ended():
                time.sleep(0.002)
            scene.note_pids()
            fault.inject(scene)
        scene.touch("go")
        result = scene.result()
        if result.outcome != "lost":
            leftovers.require_no_task_left(scene)
        if scene.client is not None:
            code = scene.client.wait(leftovers.GONE_WITHIN_S)
            # A signal after the end of the run kills the client as it would any program.
            late = {-fault.number for fault in random_run.faults if fault.who is Who.CLIENT and fault.number}
            require(code in {result.exit_code, *late}, Kind.EXIT_CODE, f"{code}: {scene.client_output()}")
    _check_any_end(random_run, scene, result)
    if result.outcome != "lost":
        leftovers.require_whole_events(scene)
    if any(fault.who is Who.SUPERVISOR for fault in random_run.faults):
        # The next command tidies up after a killed supervisor, whether or not it had written the result.
        api.tidy()
    leftovers.require_nothing_left(scene)
    written = scene.run.view.result()
    require(written == result, Kind.EVENTS, f"written {written}, returned {result}")


def _check_any_end(random_run: RandomRun, scene: Scene, result: RunResult) -> None:
    findings = []
    for ends in random_run.ends:
        try:
            return check_end(ends, scene, result)
        except CellFailure as failure:
            findings.append(failure)
    order = [Kind.CAUSE, Kind.EXIT_CODE, Kind.OUTCOME]
    raise min(findings, key=lambda failure: order.index(failure.kind))
