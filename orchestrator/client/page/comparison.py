"""Several runs beside each other: what differs, their last values, and the curves of their chiefs (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.client.page.series import Series

Document = Mapping[str, Any]
# Names of a run's own directories and addresses, which always differ.
_OF_ONE_RUN = frozenset({"cwd", "log-dir", "checkpoint-dir"})


def comparison(documents: Sequence[Document]) -> dict[str, Any]:
    """Return the comparison of runs, in their order. The documents have their series."""
    series = [_of_chief(document) for document in documents]
    metrics = list(dict.fromkeys(name for columns in series for name in columns.get("metrics", {})))
    runs = [document["run"] for document in documents]
    return {
        "runs": [{name: run[name] for name in ("id", "name", "state", "command", "took_s")} for run in runs],
        "differences": list(differences(documents)),
        "final": list(_final(documents)),
        "series": {
            "metrics": metrics,
            "tasks": {run["id"]: columns for run, columns in zip(runs, series, strict=True)},
        },
    }


def differences(documents: Sequence[Document]) -> Iterator[dict[str, Any]]:
    """Yield what the runs differ in: {kind, name, values}, a value for each run, None where it has none."""
    plans = [document["plan"] for document in documents]
    yield from _differing("command", [{"command": document["run"]["command"]} for document in documents])
    yield from _differing("strategy", [{"strategy": plan["strategy"] or None} for plan in plans])
    yield from _differing("option", [_without(plan["options"], _OF_ONE_RUN) for plan in plans])
    yield from _differing("version", [plan["versions"] for plan in plans])
    yield from _differing("environment", [dict.fromkeys(plan["env_names"], "set") for plan in plans])
    yield from _differing(
        "directory", [{"directory": document["run"]["directory"]} for document in documents]
    )


def _differing(kind: str, tables: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for name in dict.fromkeys(name for table in tables for name in table):
        values = [table.get(name) for table in tables]
        if any(value != values[0] for value in values):
            yield {"kind": kind, "name": name, "values": values}


def _without(table: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name not in names}


def _final(documents: Sequence[Document]) -> Iterator[dict[str, Any]]:
    """Yield the last values of each run's chief: {name, values}, None where a run has none."""
    tables = [last_values(document) for document in documents]
    for name in dict.fromkeys(name for table in tables for name in table):
        yield {"name": name, "values": [table.get(name) for table in tables]}


def last_values(document: Document) -> dict[str, float]:
    """Return the last progress of the training by name: epoch, step, loss, metrics."""
    reports = [task["progress"] for task in document["tasks"] if task["role"] != "evaluator"]
    training: Mapping[str, Any] = (document["end"] or {}).get("training") or next(
        (report for report in reports if report is not None and report["loss"] is not None), {}
    )
    values = {name: training.get(name) for name in ("epoch", "step", "loss")}
    values |= training.get("metrics") or {}
    return {name: value for name, value in values.items() if value is not None}


def _of_chief(document: Document) -> Series:
    """The series of the first task with a loss, else of the first one that has any."""
    tasks: Mapping[str, Series] = document["series"]["tasks"]
    found = [tasks[task["task"]] for task in document["tasks"] if task["task"] in tasks] or [*tasks.values()]
    return next((columns for columns in found if "loss" in columns), found[0] if found else {"time": []})
