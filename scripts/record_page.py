"""Runs the built-in program twice and draws its reports as PNG, for the README. Called by scripts/record.

Needs /usr/bin/chromium; without it the pictures stay as they are.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ORCH = Path(sys.executable).with_name("orch")
CHROMIUM = Path("/usr/bin/chromium")
DOCS = Path(__file__).resolve().parents[1] / "docs"
_DEADLINE_S = 300.0
_PATIENCE_MS = 60_000
# For each picture: file, words of `orch up --workers 4`, part of the page, scheme, size in pixels, what must be drawn.
PICTURES: tuple[tuple[str, tuple[str, ...], str, str, tuple[int, int], str], ...] = (
    (
        "page-run.png",
        ("--max-restarts", "3", "--chaos", "kill worker:1 at step 80"),
        "",
        "light",
        (1280, 1180),
        ".chart canvas",
    ),
    ("page-logs.png", ("--chaos", "kill worker:2 at step 60"), "logs", "dark", (1280, 640), ".log-row"),
)


def main() -> int:
    if not CHROMIUM.exists():
        print(f"{CHROMIUM} is missing: docs/page-*.png are not drawn", file=sys.stderr)
        return 0
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        directory = Path(home) / "digits"
        directory.mkdir()
        for name, options, tab, scheme, size, drawn in PICTURES:
            file = report(directory, {**os.environ, "XDG_STATE_HOME": home}, options)
            draw(browser, file, tab, scheme, size, drawn, DOCS / name)
        browser.close()
    return 0


def report(directory: Path, environ: dict[str, str], options: tuple[str, ...]) -> Path:
    """Return the report of a new run. It may fail: that can be what is shown."""
    subprocess.run(
        [ORCH, "up", "--workers", "4", *options], cwd=directory, env=environ, timeout=_DEADLINE_S, check=False
    )
    file = directory / "report.html"
    subprocess.run([ORCH, "report", "-o", file, "--force"], cwd=directory, env=environ, check=True)
    return file


def draw(
    browser: Any, file: Path, tab: str, scheme: str, size: tuple[int, int], drawn: str, target: Path
) -> None:
    page = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    page.set_default_timeout(_PATIENCE_MS)
    page.goto(file.as_uri())
    page.wait_for_function("() => Orch.page.view && Orch.page.view.doc && Orch.page.view.logs.store.size")
    page.evaluate("tab => Orch.go(Orch.address(Orch.page.view.id, tab))", tab)
    page.wait_for_function("tab => Orch.page.view.tab === tab", arg=tab)
    page.locator(f"{drawn}:visible").last.wait_for()
    page.screenshot(path=str(target))
    page.close()


if __name__ == "__main__":
    sys.exit(main())
