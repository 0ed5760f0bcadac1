"""Ends what lost runs have left, as any orch command does, and says so."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.cli import words
from orchestrator.runs import catalog


def sweep() -> None:
    say_swept(catalog.sweep_lost_runs())


def say_swept(swept: Iterable[tuple[str, int]]) -> None:
    """`swept`: (run id, processes ended)."""
    for run_id, count in swept:
        words.say(f"ended {count} process{'es' if count > 1 else ''} that the lost run {run_id} had left")
