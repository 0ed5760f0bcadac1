"""A run as a piece of HTML for a notebook: outcome, table of tasks, and curves as SVG (pure). All text is escaped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from orchestrator.client.view.amounts import duration, number, rate, size

# The colours of page.css, for a light and a dark background.
LIGHT = (
    *("#1799c2", "#cf8a00", "#0a8f68", "#c2569b", "#1f4fbf"),
    *("#4fb8d6", "#e0a83a", "#47b08f", "#d88abd", "#6a86dc"),
)
DARK = (
    *("#4cc4e6", "#e6ab2e", "#35c095", "#e28bc3", "#6d93f2"),
    *("#94dcee", "#f0cd85", "#8bdcbf", "#f0bbdb", "#a9c0f8"),
)
# The bright colours of the terminal are dashed.
_FIRST_DASHED = 5
_MOST_METRICS, _MOST_LINES, _MOST_ROWS = 4, 40, 32
# Parts of the width; each has at most two points of a line, its least and its greatest value.
_PARTS = 160
_WIDTH, _HEIGHT, _TOP, _BOTTOM = 360, 110, 6, 104
Document = Mapping[str, Any]
Points = list[tuple[float, float]]


def run_html(document: Document) -> str:
    """Return the piece for a document of RunPage."""
    run, end = document["run"], document["end"]
    took = run["uptime_s"] if run["took_s"] is None else run["took_s"]
    attempt = f", attempt {run['attempt']}" if run["attempt"] > 1 else ""
    parts = [
        f"<p><b>{_text(run['id'])}</b> {_text(run['state'].replace('_', ' '))} · {duration(took)}{attempt}</p>"
    ]
    if end is not None:
        parts = [f"<p><b>{_text(end['headline'])}</b></p>"]
        if end["cause"] is not None:
            parts.append(f'<p class="bad"><b>{_text(end["cause"]["line"])}</b></p>')
        if end["advice"]:
            parts.append(f"<p>{_text(end['advice'])}</p>")
    parts += [_table(document["tasks"]), "<div>", *_figures(document), "</div>"]
    return f'<div class="orch-run"><style>{_STYLE}</style>{"".join(parts)}</div>'


def _table(tasks: Sequence[Document]) -> str:
    rows = []
    for task in tasks[:_MOST_ROWS]:
        progress = task["progress"] or {}
        bad = progress.get("bad_loss")
        loss = bad["value"] if bad else number(progress.get("loss"))
        cells = [task["state"], task["doing"], loss, rate(progress.get("steps_per_s"))]
        cpu = "" if task["cpu_percent"] is None else f"{task['cpu_percent']:.0f}%"
        cells += [cpu, size(task["memory_bytes"])]
        name = f'<td><i class="t{task["colour"]}"></i>{_text(task["task"])}</td>'
        rows.append(f"<tr>{name}{''.join(f'<td>{_text(cell)}</td>' for cell in cells)}</tr>")
    if len(tasks) > _MOST_ROWS:
        rows.append(f'<tr><td colspan="7">{len(tasks) - _MOST_ROWS} more tasks</td></tr>')
    titles = ("task", "state", "progress", "loss", "steps/s", "CPU", "memory")
    return f"<table><tr>{''.join(f'<th>{title}</th>' for title in titles)}</tr>{''.join(rows)}</table>"


def _figures(document: Document) -> Iterator[str]:
    series = document["series"]
    colours = {task["task"]: task["colour"] for task in document["tasks"]}
    columns = {task: its for task, its in series["tasks"].items() if its.get("time")}
    end = max((its["time"][-1] for its in columns.values()), default=0.0)
    plots: list[tuple[str, str, Callable[[float], str]]] = [("loss", "loss", number)]
    plots += [(name, name, number) for name in series["metrics"][:_MOST_METRICS]]
    plots += [("steps/s", "steps_per_s", rate), ("memory", "memory_bytes", lambda it: size(int(it)))]
    plots += [("CPU", "cpu_percent", lambda it: f"{it:.0f}%")]
    plots += [("GPU memory", "gpu_memory_bytes", lambda it: size(int(it)))]
    plots += [("GPU", "gpu_percent", lambda it: f"{it:.0f}%")]
    for title, name, text in plots:
        lines: dict[str, list[Points]] = {}
        for task, its in columns.items():
            values = its["metrics"].get(name) if name in series["metrics"] else its.get(name)
            if values is not None:
                lines[task] = _parts_of(its, values, end)
        if any(part for parts in lines.values() for part in parts):
            yield _figure(title, lines, colours, end, text)


def _parts_of(columns: Document, values: Sequence[float | None], end: float) -> list[Points]:
    """Return the points of each attempt, thinned."""
    attempts: dict[int, Points] = {}
    numbers = columns.get("attempt") or [0] * len(values)
    for time, attempt, value in zip(columns["time"], numbers, values, strict=True):
        if value is not None and math.isfinite(value):
            attempts.setdefault(attempt or 0, []).append((time, value))
    return [list(_thinned(points, end)) for points in attempts.values()]


def _thinned(points: Points, end: float) -> Iterator[tuple[float, float]]:
    """Yield the least and the greatest point of each part of the width, in order."""
    parts: dict[int, Points] = {}
    for point in points:
        parts.setdefault(int(point[0] / (end or 1) * _PARTS), []).append(point)
    for part in parts.values():
        yield from sorted({min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])})


def _figure(
    title: str,
    lines: Mapping[str, list[Points]],
    colours: Mapping[str, int],
    end: float,
    text: Callable[[float], str],
) -> str:
    every = [value for parts in lines.values() for part in parts for _, value in part]
    low, high = min(every), max(every)
    span = high - low or 1.0

    def path(parts: list[Points]) -> str:
        drawn = []
        for part in parts:
            places = [
                f"{time / (end or 1) * _WIDTH:.1f} {_BOTTOM - (value - low) / span * (_BOTTOM - _TOP):.1f}"
                for time, value in part
            ]
            # A line of one point is not drawn without an end.
            drawn.append("M" + "L".join(places if len(places) > 1 else places * 2))
        return "".join(drawn)

    shown: dict[str, str] = {}
    for task, parts in list(lines.items())[:_MOST_LINES]:
        shown.setdefault(path(parts), task)  # identical lines are one
    paths = "".join(
        f'<path class="t{colours.get(task, 0)}" d="{d}"><title>{_text(task)}</title></path>'
        for d, task in shown.items()
        if d
    )
    more = f" ({_MOST_LINES} of {len(lines)} tasks)" if len(lines) > _MOST_LINES else ""
    label = _text(f"{title}{more}: {text(low)} to {text(high)}")
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{paths}</svg>'
    return (
        f"<figure><figcaption>{label}</figcaption>{svg}<small>0s<span>{duration(end)}</span></small></figure>"
    )


def _text(text: object) -> str:
    return escape(str(text), quote=True)


def _colours(prefix: str, colours: Sequence[str]) -> str:
    return "".join(
        f"{prefix}.orch-run path.t{at}{{stroke:{it}}}{prefix}.orch-run i.t{at}{{background:{it}}}"
        for at, it in enumerate(colours)
    )


_DASHED = ",".join(f".orch-run path.t{at}" for at in range(_FIRST_DASHED, len(LIGHT)))
_STYLE = (
    ".orch-run{max-width:1160px}.orch-run th,.orch-run td{text-align:left;padding:1px 12px 1px 0}"
    ".orch-run p{margin:2px 0}.orch-run .bad{color:#d13b46}"
    ".orch-run i{display:inline-block;width:10px;height:10px;margin-right:6px}"
    ".orch-run>div{display:flex;flex-wrap:wrap;gap:12px}.orch-run figure{margin:8px 0;width:360px;max-width:100%}"
    ".orch-run figcaption,.orch-run small{font-size:12px;opacity:.8}"
    ".orch-run small{display:flex;justify-content:space-between}"
    ".orch-run svg{width:100%;display:block;border-left:1px solid #8888;border-bottom:1px solid #8888}"
    ".orch-run path{fill:none;stroke-width:1.5;stroke-linecap:round}"
    + _colours("", LIGHT)
    + f"@media(prefers-color-scheme:dark){{{_colours('', DARK)}}}"
    + _colours("[data-jp-theme-light=true] ", LIGHT)
    + _colours("[data-jp-theme-light=false] ", DARK)
    + f"{_DASHED}{{stroke-dasharray:5 3}}"
)
