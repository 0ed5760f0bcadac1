"""A run and its result as a notebook shows them."""

from __future__ import annotations

import math
import re
import sys
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

from orchestrator import Cluster
from orchestrator.client.page import figures
from orchestrator.client.page.figures import run_html

EVIL = "<script>alert(1)</script>\" ' &amp; </svg> \\u202e \\x1b[2J"
# Reports a metric with a hostile name, and fails with a hostile message.
SCRIPT = f"""
import json, os
for step in range(1, 4):
    said = {{"phase": "training", "step": step, "loss": 1 / step, "metrics": {{"<b>\\"'": step}}}}
    os.write(int(os.environ["ORCH_PROGRESS_FD"]), json.dumps(said).encode() + b"\\n")
raise ValueError({EVIL!r}.encode().decode("unicode_escape"))
"""


class Tags(HTMLParser):
    """The names of all elements and attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names |= {tag, *(name for name, _ in attrs)}


def test_run_and_result_are_shown_and_all_text_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with Cluster(command=[sys.executable, "train.py"], directory=tmp_path) as run:
        assert run.id in run._repr_html_()  # also while it is live
        result = run.wait(check=False)
    html = run._repr_html_()
    assert result._repr_html_() == html
    assert "ValueError: &lt;script&gt;alert(1)" in html and "<figcaption>loss: " in html
    assert "<script" not in html and not re.search("[\\u202e\\x1b]", html)
    elements = "div style p b table tr th td i figure figcaption svg path title small span"
    attributes = "class colspan viewbox role aria-label d"
    assert Tags(html).names <= {*elements.split(), *attributes.split()}


def test_colours_are_those_of_the_page() -> None:
    style = (files("orchestrator.client.page") / "assets" / "page.css").read_text()
    colours = re.findall(r"--line-\d: (#\w+)", style)
    assert colours == [*figures.LIGHT, *figures.DARK]


def test_long_run_of_many_tasks_is_small() -> None:
    names = [f"worker:{n}" for n in range(1_000)]
    progress = {"loss": 0.5, "steps_per_s": 1.0}
    task = {"state": "running", "doing": "", "progress": progress, "cpu_percent": 1.0, "memory_bytes": 1}
    times = [float(n) for n in range(4_000)]
    losses = [None if n % 7 == 0 else math.sin(n) for n in range(4_000)]
    html = run_html(
        {
            "run": {"id": "r", "state": "running", "uptime_s": 4_000.0, "took_s": None, "attempt": 2},
            "end": None,
            "tasks": [{**task, "task": name, "colour": n % 10} for n, name in enumerate(names)],
            "series": {
                "metrics": [],
                # The lines of two tasks are the same.
                "tasks": {
                    name: {"time": times, "attempt": [1] * 4_000, "loss": [v and v + n // 2 for v in losses]}
                    for n, name in enumerate(names[:80])
                },
            },
        }
    )
    assert len(html) < 300_000 and html.count("<path") == 20 and "968 more tasks" in html
