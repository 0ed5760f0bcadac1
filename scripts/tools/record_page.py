"""Runs the built-in program twice and draws its reports as PNG, for the README. Used by record_screens.py.

Needs /usr/bin/chromium; without it the pictures stay as they are. The check needs none: it says whether each picture is
there, has the size that it is drawn with, and is shown by the README.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ORCH = Path(sys.executable).with_name("orch")
CHROMIUM = Path("/usr/bin/chromium")
DOCS = Path(__file__).resolve().parents[2] / "docs"
PNG = b"\x89PNG\r\n\x1a\n"
_DEADLINE_S = 300.0
_PATIENCE_MS = 60_000


class Picture(NamedTuple):
    """`options`: of `orch up --workers 4`. `tab`: part of the page. `drawn`: what must be there. `size`: in pixels."""

    file: str
    options: tuple[str, ...]
    tab: str
    scheme: str
    drawn: str
    size: tuple[int, int]


PICTURES = (
    Picture(
        "page-run.png",
        options=("--max-restarts", "3", "--chaos", "kill worker:1 at step 80"),
        tab="",
        scheme="light",
        drawn=".chart canvas",
        size=(1280, 1180),
    ),
    Picture(
        "page-logs.png",
        options=("--chaos", "kill worker:2 at step 60"),
        tab="logs",
        scheme="dark",
        drawn=".log-row",
        size=(1280, 640),
    ),
)


def faults(docs: Path) -> Iterator[str]:
    """Yield what is wrong with the pictures, as far as their files tell."""
    readme = (docs.parent / "README.md").read_text(encoding="utf-8")
    for name, *_, size in PICTURES:
        head = (docs / name).read_bytes()[:24] if (docs / name).is_file() else b""
        if not head.startswith(PNG):
            yield f"docs/{name}: is missing, or not a PNG; scripts/tools/record draws it"
        elif struct.unpack(">II", head[16:]) != size:
            yield f"docs/{name}: has another size than {size[0]} x {size[1]}; scripts/tools/record draws it again"
        if f"docs/{name}" not in readme:
            yield f"docs/{name}: the README does not show it"


def draw_all() -> None:
    if not CHROMIUM.exists():
        print(f"{CHROMIUM} is missing: docs/page-*.png are not drawn", file=sys.stderr)
        return
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        directory = Path(home) / "digits"
        directory.mkdir()
        where: dict[str, Any] = {"cwd": directory, "env": {**os.environ, "XDG_STATE_HOME": home}}
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        for picture in PICTURES:
            up = [ORCH, "up", "--workers", "4", *picture.options]
            subprocess.run(up, timeout=_DEADLINE_S, check=False, **where)  # it may fail: that can be shown
            subprocess.run([ORCH, "report", "-o", "report.html", "--force"], check=True, **where)
            draw(browser, directory / "report.html", picture)
        browser.close()


def draw(browser: Any, report: Path, picture: Picture) -> None:
    width, height = picture.size
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=picture.scheme)
    page.set_default_timeout(_PATIENCE_MS)
    page.goto(report.as_uri())
    page.wait_for_function("() => Orch.page.view && Orch.page.view.doc && Orch.page.view.logs.store.size")
    page.evaluate("tab => Orch.go(Orch.address(Orch.page.view.id, tab))", picture.tab)
    page.wait_for_function("tab => Orch.page.view.tab === tab", arg=picture.tab)
    page.locator(f"{picture.drawn}:visible").last.wait_for()
    page.screenshot(path=str(DOCS / picture.file))
    page.close()
