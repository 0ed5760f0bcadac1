"""`orch prune`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.parameters import Everywhere, Screen, read_option, takes_screen
from orchestrator.cli.selection import sweep
from orchestrator.cli.words import print_json, print_lines, say
from orchestrator.client.view.amounts import duration, size
from orchestrator.core.errors import ExitCode, UsageError
from orchestrator.core.text.clean import safe
from orchestrator.core.text.counted import counted
from orchestrator.core.text.durations import parse_duration
from orchestrator.core.text.sizes import parse_size
from orchestrator.store.runs import pruning
from orchestrator.store.runs.prune_choice import PruneTerms
from orchestrator.store.runs.pruning import Pruned, PruneReport, Scope


@takes_screen
def prune(
    screen: Screen,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="TIME", help="Runs that ended longer ago than this (7d, 12h)."),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(
            "--max-size", metavar="SIZE", help="The oldest, until the others take no more than this (5GB)."
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            metavar="N",
            min=0,
            help="Keep the N newest of each name in each directory; without the other two: remove all others.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Only runs of that name.")
    ] = None,
    everywhere: Everywhere = False,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Also remove their checkpoints, which are kept otherwise.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
) -> int:
    """Remove ended runs by age, count or size. Live ones and checkpoints stay."""
    terms = PruneTerms(
        older_than_s=read_option("--older-than", older_than, parse_duration),
        keep=keep,
        max_bytes=read_option("--max-size", max_size, _most_bytes),
    )
    if not terms.has_condition:
        raise UsageError(
            "say which runs: --older-than 7d, --keep 10 or --max-size 5GB (--keep 0: all that have ended);"
            " --dry-run shows what would be removed"
        )
    sweep()
    scope = Scope(None if everywhere else str(Path.cwd()), name)
    report = pruning.prune(scope, terms, checkpoints, dry_run)
    failed = [each for each in report.pruned if each.problem is not None]
    if screen.json:
        print_json(_document(report, dry_run))
    else:
        if not screen.quiet:
            print_lines(safe(line) for line in _lines(report, dry_run))
        for each in failed:
            say(f"{each.run.id} is left as it is: {each.problem}")
        if not report.pruned and not report.left_runs and not screen.quiet:
            say("no runs here; `orch prune --all` includes those of other directories")
    return ExitCode.ORCH if failed else ExitCode.OK


def _most_bytes(text: str) -> int:
    return 0 if text.strip() == "0" else parse_size(text)


def _lines(report: PruneReport, dry_run: bool) -> Iterator[str]:
    done = [each for each in report.pruned if each.problem is None]
    for each in done:
        yield _line(each, dry_run)
    many, left = counted(len(done), "run"), counted(report.left_runs, "run")
    freed = "would free" if dry_run else "freed"
    yield f"{freed} {size(report.freed_bytes)} of {many}; {left} left, {size(report.left_bytes)}"


def _line(pruned: Pruned, dry_run: bool) -> str:
    run = pruned.run
    age = duration(max(0.0, time.time() - (run.started_at if run.ended_at is None else run.ended_at)))
    if pruned.kept_checkpoints is None:
        return f"{'would remove' if dry_run else 'removed'} {run.id}  {size(pruned.freed_bytes)}, ended {age} ago"
    kept = size(run.size_bytes - pruned.freed_bytes)
    trimmed = "would trim" if dry_run else "trimmed"
    return f"{trimmed} {run.id}  {size(pruned.freed_bytes)}, ended {age} ago; its checkpoints stay ({kept})"


def _document(report: PruneReport, dry_run: bool) -> dict[str, object]:
    runs = [
        {
            "id": each.run.id,
            "name": each.run.name,
            "directory": each.run.directory,
            "dir": each.run.root,
            "size_bytes": each.run.size_bytes,
            "freed_bytes": each.freed_bytes,
            "kept_checkpoints": each.kept_checkpoints,
            "problem": each.problem,
        }
        for each in report.pruned
    ]
    return {
        "schema_version": 1,
        "dry_run": dry_run,
        "runs": runs,
        "freed_bytes": report.freed_bytes,
        "left_runs": report.left_runs,
        "left_bytes": report.left_bytes,
    }
