"""The parts of the page, from the files in assets/: its script, its style and the inside of its body."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

# In the order in which they are joined: each uses only those before it, and the last one starts the page.
SCRIPTS = (
    "uplot/uPlot.iife.min.js",
    "base.js",
    "virtual_rows.js",
    "log_lines.js",
    "log_store.js",
    "log_view.js",
    "series.js",
    "chart.js",
    "curves.js",
    "timeline.js",
    "task_table.js",
    "failure.js",
    "plan.js",
    "compare.js",
    "runs.js",
    "dialogs.js",
    "run_view.js",
)
STYLES = ("uplot/uPlot.min.css", "page.css", "views.css")


def page_script(*, live: bool = False) -> str:
    """Return the script of the live page, or of a report."""
    feed = "live_feed.js" if live else "report_feed.js"
    return "\n".join(map(_text, (*SCRIPTS, feed, "page.js")))


def page_style() -> str:
    return "\n".join(map(_text, STYLES))


def page_body() -> str:
    return _text("page.html")


@cache
def _text(name: str) -> str:
    return (files("orchestrator.client.page") / "assets" / name).read_text(encoding="utf-8")
