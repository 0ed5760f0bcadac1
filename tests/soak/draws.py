"""Draws the faults of a soak run by seed and number: a varied cell of the matrix, or faults at random times."""

from __future__ import annotations

import random
import signal
from dataclasses import replace

from cells import Cell, Ends, Way, Who, failed
from matrix import MATRIX
from random_faults import RandomFault, RandomRun

_LATEST_S = 1.2
_PRIVATE_SHARE = 0.15
# Cells that need their own disk are started by name and cannot be varied.
_TO_VARY = [cell for cell in MATRIX if cell.way is Way.COLD and not cell.needs_disk]
_FAILURE_GRACES = ("0s", "100ms", "500ms", "2s")
_POLICIES = (None, None, "restart", "restart-task", "continue")
_FAULTS: tuple[tuple[Who | None, signal.Signals | None], ...] = (
    (Who.VICTIM, signal.SIGKILL),
    (Who.VICTIM, signal.SIGTERM),
    (Who.AGENT, signal.SIGKILL),
    (Who.AGENT, signal.SIGTERM),
    (Who.SUPERVISOR, signal.SIGKILL),
    (Who.SUPERVISOR, signal.SIGTERM),
    (Who.SUPERVISOR, signal.SIGINT),
    (Who.CLIENT, signal.SIGKILL),
    (Who.CLIENT, signal.SIGINT),
    (Who.CLIENT, signal.SIGTERM),
    (Who.CLIENT, signal.SIGHUP),
    (None, None),
    (None, signal.SIGKILL),
)


def draw(seed: int, number: int) -> Cell | RandomRun:
    """The same for the same seed and number."""
    chance = random.Random(f"{seed} {number}")
    return _random_run(chance) if chance.random() < 0.45 else _varied(chance, chance.choice(_TO_VARY))


def _random_run(chance: random.Random) -> RandomRun:
    workers = chance.choice((1, 2, 2, 3, 4))
    victim = chance.randrange(workers)
    many = chance.choice((1, 1, 2))
    faults = [
        RandomFault(round(chance.uniform(0, _LATEST_S), 3), *chance.choice(_FAULTS)) for _ in range(many)
    ]
    options: dict[str, object] = {"failure_grace": chance.choice(_FAILURE_GRACES)}
    policy = chance.choice(_POLICIES)
    if policy is not None:
        options["on_failure"] = policy
    if chance.random() < _PRIVATE_SHARE:
        options["network"] = "private"
    more: tuple[Ends, ...] = ()
    extra = chance.random()
    if extra < 0.2:
        options["chaos"] = f"kill worker:{victim} at {chance.randrange(100, 1500)}ms"
        more = (failed(137),)
    elif extra < 0.35:
        faults[0] = RandomFault(faults[0].at_s, Who.VICTIM, signal.SIGSTOP)
        options |= {"stall_timeout": "1s", "start_timeout": "2s", "timeout": "8s"}
    return RandomRun(tuple(faults), workers, victim, options=options, more_ends=more)


def _varied(chance: random.Random, cell: Cell) -> Cell:
    """The same fault in another cluster: it must end as in the matrix."""
    workers = chance.choice((2, 2, 3, 4)) if cell.workers == 2 else cell.workers
    # A chief is another cell's.
    victim = cell.victim and chance.randrange(1, workers)
    options = {"failure_grace": chance.choice(_FAILURE_GRACES), **cell.options}
    breaks = "daemonises" if cell.breaks == "nothing" and chance.random() < 0.15 else cell.breaks
    return replace(cell, workers=workers, victim=victim, options=options, breaks=breaks)
