"""Warm starts of `orch up`: which supervisor a run gets, and whether it stays for the next run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from orchestrator.client.api import Run
from orchestrator.client.launch import create_run
from orchestrator.core.text.counted import counted
from orchestrator.links import warm
from orchestrator.links.client_link import Descriptor, Lifetime, Warm
from orchestrator.links.supervisor_link import SupervisorLeft, SupervisorLink, start_supervisor
from orchestrator.request.settings.request import UpRequest
from orchestrator.store.ownership import accepted_owner

# Seconds: longer than a person thinks about an error. The processes end with the client anyway.
_WATCHING_S = 86_400.0
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

    def create(
        self,
        up: UpRequest,
        lifetime: Lifetime,
        descriptors: Mapping[Descriptor, int] = MappingProxyType({}),
    ) -> Run:
        """As create_run(). A warm supervisor that has just exited is replaced by a new one."""
        try:
            return create_run(self.supervisor, up, lifetime, descriptors, warm=self.warm)
        except SupervisorLeft:
            if not self.supervisor.is_warm:
                raise
            self.supervisor.restart()
            return create_run(self.supervisor, up, lifetime, descriptors, warm=self.warm)


def choose_start(up: UpRequest, early: SupervisorLink | None) -> Start:
    """Return the start of a run. `early`: a supervisor that was started already, because no holder seemed to wait, or
    one that is kept for several runs (early.use_supervisor).

    Close the supervisor of the result. EngineError.
    """
    wanted_s, owner = up.display.warm_s, None
    if wanted_s is None and up.display.watch:
        wanted_s, owner = _WATCHING_S, os.getpid()
    is_kept = early is not None and early.is_warm
    if reason := _why_never(up, is_kept):
        notes = (f"--warm is off: {reason}",) if up.display.warm_s else ()
        return Start(early or start_supervisor(), notes=notes)
    if early is not None and is_kept:
        return Start(early, Warm(idle_s=None, conditions={}))
    if wanted_s == 0:
        return Start(early or start_supervisor())
    directory = str(up.spec.directory)
    if early is not None and wanted_s is None:
        return Start(early)
    conditions = warm.conditions(directory)
    keeps = Warm(idle_s=wanted_s, conditions=conditions, owner=owner)
    if early is not None:
        return Start(early, keeps)
    found = warm.take_over(directory)
    if found is None:
        note = "cold start: the processes that are kept warm here are in use, or do not answer"
        return Start(start_supervisor(), keeps if wanted_s else None, (note,))
    connection, holding = found
    if (changed := warm.differing(conditions, holding.conditions)) is not None:
        warm.dismiss_holder_of(directory)
        connection.close()
        note = f"cold start: {changed} is not as in the processes that were kept warm here"
        return Start(start_supervisor(), keeps, (note,))
    if owner is not None and holding.owner != owner:
        keeps = Warm(idle_s=None, conditions=conditions)  # as its own --warm wants it
    return Start(
        SupervisorLink(None, connection), keeps, (f"warm start: {counted(holding.runs, 'run')} before",)
    )


def _why_never(up: UpRequest, is_kept: bool) -> str | None:
    """Why this run neither uses warm processes nor leaves any."""
    if not (is_kept or has_terminal() or up.display.watch):
        return "there is no terminal from which the next run could be started"
    if up.spec.hosts:
        return "the run's tasks are on other hosts"
    if accepted_owner() is not None:
        return "the state directory belongs to another user"
    return None
