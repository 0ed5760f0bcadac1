"""Warm starts of `orch up`: which supervisor a run gets, and whether it stays for the next run."""

from __future__ import annotations

import os
from dataclasses import dataclass

from orchestrator.core.text.counted import counted
from orchestrator.links import kept
from orchestrator.links.client_link import Warm
from orchestrator.links.supervisor_link import SupervisorLink, start_supervisor
from orchestrator.request.settings.request import UpRequest
from orchestrator.store.ownership import accepted_owner

_STANDARD_STREAMS = (0, 1, 2)


def has_terminal() -> bool:
    """Return whether one of the standard streams is a terminal. Without one, a person starts no next run."""
    return any(map(os.isatty, _STANDARD_STREAMS))


@dataclass(frozen=True)
class Start:
    """A supervisor for a run. `warm`: what stays after the run. `notes` say why the start is cold, for -v."""

    supervisor: SupervisorLink
    warm: Warm | None = None
    notes: tuple[str, ...] = ()


def choose_start(up: UpRequest, early: SupervisorLink | None) -> Start:
    """Return the start of a run. `early`: a supervisor that was started already, because no holder seemed to wait, or
    one that is kept for several runs.

    Close the supervisor of the result. EngineError.
    """
    wanted_s = up.display.warm_s
    if early is not None and not early.is_own:
        return Start(early)
    if reason := _why_never(up):
        notes = (f"--warm is off: {reason}",) if wanted_s else ()
        return Start(early or start_supervisor(), notes=notes)
    if wanted_s == 0 or (early is not None and wanted_s is None):
        return Start(early or start_supervisor())
    directory = str(up.spec.directory)
    conditions = kept.conditions(directory)
    keeps = Warm(idle_s=wanted_s, conditions=conditions) if wanted_s else None
    if early is not None:
        return Start(early, keeps)
    found = kept.take_over(directory)
    if found is None:
        note = "cold start: the processes that are kept warm here are in use, or do not answer"
        return Start(start_supervisor(), keeps, (note,))
    connection, holding = found
    if (changed := kept.differing(conditions, holding.conditions)) is not None:
        kept.dismiss_holder_of(directory)
        connection.close()
        note = f"cold start: {changed} is not as in the processes that were kept warm here"
        return Start(start_supervisor(), keeps, (note,))
    note = f"warm start: {counted(holding.runs, 'run')} before"
    return Start(SupervisorLink(connection, replace=start_supervisor), keeps, (note,))


def _why_never(up: UpRequest) -> str | None:
    """Why this run neither uses warm processes nor leaves any."""
    if not (has_terminal() or up.display.watch):
        return "there is no terminal from which the next run could be started"
    if up.spec.hosts:
        return "the run's tasks are on other hosts"
    if accepted_owner() is not None:
        return "the state directory belongs to another user"
    return None
