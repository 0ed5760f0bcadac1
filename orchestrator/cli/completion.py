"""Completion of RUN, TASK and signals in the shell: plain words only, and no errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import typer

# zsh evaluates the words that it is given; bash expands patterns in them. Directories may have any name.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]+)?\Z", re.ASCII)


def run_words(incomplete: str) -> list[str]:
    """Return names of runs, live ones first, and ids if `incomplete` is the beginning of one."""
    try:
        return _plain(_run_words(incomplete))
    except OSError:
        return []


def log_words(context: typer.Context, incomplete: str) -> list[str]:
    """Return runs and the default run's tasks for the first word of `orch logs`, then tasks of the given run."""
    given = [str(word) for word in context.params.get("words") or ()]
    try:
        runs = [] if given else run_words(incomplete)
        tasks = _task_words(given[0] if given else None)
        return runs + _plain(task for task in tasks if task.startswith(incomplete))
    except OSError:
        return []


def signal_words(incomplete: str) -> list[str]:
    """Return the short names of signals, or the long names if `incomplete` begins with SIG."""
    from orchestrator.core.text.signal_names import short_names

    prefix = "SIG" if incomplete.startswith("SIG") else ""
    return [name for name in (prefix + short for short in short_names()) if name.startswith(incomplete)]


def _plain(words: Iterable[str]) -> list[str]:
    """Return each word once, without those that a shell could evaluate."""
    return [word for word in dict.fromkeys(words) if _PLAIN.match(word)]


def _run_words(incomplete: str) -> Iterator[str]:
    from orchestrator.store.runs import catalog

    runs = sorted(catalog.all_runs(), key=lambda run: (not run.is_live, -run.record.started_at))
    yield from (run.record.name for run in runs if run.record.name.startswith(incomplete))
    if incomplete:
        yield from (run.record.id for run in runs if run.record.id.startswith(incomplete))


def _task_words(wanted: str | None) -> list[str]:
    from pathlib import Path

    from orchestrator.core.errors import NoSuchRun
    from orchestrator.store.runs import catalog

    try:
        run = catalog.find_run(wanted, Path.cwd())
    except NoSuchRun:
        return _task_words(None) if wanted is not None else []
    run.refresh()
    return list(run.state.tasks)
