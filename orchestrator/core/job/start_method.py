"""How tasks are started, as decided from the command, with the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StartMethod:
    """`fork`: tasks are forked from a process that has imported `modules`, in that order. Otherwise each task is a
    new process and `modules` is empty. `reason` is text for the user.

    `preload_env` are variables that the script sets to constants before it imports any of `modules`. They are set
    during these imports only: a forked task starts without them and sets them itself."""

    fork: bool
    reason: str
    modules: tuple[str, ...] = ()
    preload_env: tuple[tuple[str, str], ...] = ()
