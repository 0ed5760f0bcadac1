"""Runs the built-in program twice and draws its reports as PNG, for the README. Called by scripts/tools/record.

Needs /usr/bin/chromium; without it the pictures stay as they are. --check needs none: it says whether each picture is
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
from typing import Any

ORCH = Path(sys.executable).with_name("orch")
CHROMIUM = Path("/usr/bin/chromium")
DOCS = Path(__file__).resolve().parents[2] / "docs"
PNG = b"\x89PNG\r\n\x1a\n"
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
    if sys.argv[1:] == ["--check"]:
        found = list(faults(DOCS))
        print("".join(f"{fault}\n" for fault in found), end="", file=sys.stderr)
        return bool(found)
    if sys.argv[1:]:
        return 2  # record_screens.py says what is known
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


def faults(docs: Path) -> Iterator[str]:
    """Yield what is wrong with the pictures, as far as their files tell."""
    readme = (docs.parent / "README.md").read_text(encoding="utf-8")
    for name, *_, size, _ in PICTURES:
        head = (docs / name).read_bytes()[:24] if (docs / name).is_file() else b""
        if not head.startswith(PNG):
            yield f"docs/{name}: is missing, or not a PNG; scripts/tools/record draws it"
        elif struct.unpack(">II", head[16:]) != size:
            yield f"docs/{name}: has another size than {size[0]} x {size[1]}; scripts/tools/record draws it again"
        if f"docs/{name}" not in readme:
            yield f"docs/{name}: the README does not show it"


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
