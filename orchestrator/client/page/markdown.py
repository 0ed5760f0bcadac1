"""A summary of runs for a pull request, as Markdown of GitHub (pure).

Text of tasks is in code spans and blocks only. There it cannot be a link, an image, markup or a mention.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.client.page.comparison import comparison, last_values
from orchestrator.client.view.amounts import duration, number
from orchestrator.core.text.clean import safe

_MOST_TASKS = 32
# Characters of an exception: its end tells most.
_MOST_EXCEPTION = 4000
_MOST_VALUE = 200
_BACKTICKS = re.compile("`+")


def markdown(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return the summary of these documents, which have their series if there are several."""
    lines = [line for document in documents for line in (*_run(document), "")]
    if len(documents) > 1:
        lines += _comparison(comparison(documents))
    return "\n".join(lines).rstrip("\n") + "\n"


def _run(document: Mapping[str, Any]) -> Iterator[str]:
    run, end = document["run"], document["end"]
    state = run["state"].replace("_", " ")
    took = f" after {duration(run['uptime_s'] if run['took_s'] is None else run['took_s'])}"
    yield f"### {code(run['name'])}: {state}{took}"
    yield ""
    if end is not None and end["cause"] is not None:
        yield f"**Cause:** {code(end['cause']['line'])}"
        yield ""
    if end is not None and end["advice"]:
        yield f"**To do:** {code(end['advice'])}"
        yield ""
    values = ", ".join(f"{code(name)} {number(value)}" for name, value in last_values(document).items())
    yield f"- run {code(run['id'])}, command {code(run['command'])}"
    if values:
        yield f"- {values}"
    if run["attempts"] > 1:
        yield f"- {run['attempts']} attempts"
    if end is not None and end.get("workers"):
        yield f"- workers: {end['workers'].replace('->', '→')}"
    for remark in run["remarks"]:
        yield f"- {code(remark)}"
    yield from _tasks(document)
    if end is not None and end["exception"]:
        yield from _details(f"exception of {end['first_failure']['task']}", end["exception"])


def _tasks(document: Mapping[str, Any]) -> Iterator[str]:
    tasks = document["tasks"]
    if not tasks:
        return
    ends = {each["task"]: each["end"] for each in (document["end"] or {}).get("tasks", ())}
    yield ""
    yield from _table(
        ["task", "state", "how it ended", "restarts"],
        [
            [
                each["task"],
                each["state"],
                code(ends.get(each["task"]) or "", in_table=True),
                str(each["restarts"]),
            ]
            for each in tasks[:_MOST_TASKS]
        ],
    )
    if len(tasks) > _MOST_TASKS:
        yield ""
        yield f"and {len(tasks) - _MOST_TASKS:,} more tasks"


def _comparison(found: Mapping[str, Any]) -> Iterator[str]:
    heads = [code(run["id"], in_table=True) for run in found["runs"]]
    yield "### Comparison"
    yield ""
    final = [
        [code(row["name"], in_table=True), *(number(value) or "–" for value in row["values"])]
        for row in found["final"]
    ]
    took = ["took", *(duration(run["took_s"]) or "–" for run in found["runs"])]
    states = ["state", *(run["state"].replace("_", " ") for run in found["runs"])]
    yield from _table(["", *heads], [states, took, *final])
    yield ""
    if not found["differences"]:
        yield "Options, versions and environment are the same."
        return
    rows = [
        [row["kind"], code(row["name"], in_table=True), *(_value(value) for value in row["values"])]
        for row in found["differences"]
    ]
    yield from _table(["differs in", "", *heads], rows)


def _value(value: object) -> str:
    return "–" if value is None else code(str(value), in_table=True)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _details(title: str, text: str) -> Iterator[str]:
    shown = text if len(text) <= _MOST_EXCEPTION else f"…{text[-_MOST_EXCEPTION:]}"
    fence = "`" * max(3, 1 + _longest_run(shown))
    yield ""
    yield f"<details><summary>{title}</summary>"
    yield ""
    yield fence
    yield from shown.rstrip("\n").split("\n")
    yield fence
    yield ""
    yield "</details>"


def code(text: str, *, in_table: bool = False) -> str:
    """Return a code span with this text; empty for an empty text."""
    text = safe(text)
    if not text.strip():
        return ""
    text = text if len(text) <= _MOST_VALUE else f"{text[:_MOST_VALUE]}…"
    if in_table:
        text = text.replace("|", "\\|")
    fence = "`" * (1 + _longest_run(text))
    padding = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{padding}{text}{padding}{fence}"


def _longest_run(text: str) -> int:
    return max((len(found) for found in _BACKTICKS.findall(text)), default=0)
