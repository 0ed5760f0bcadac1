"""A real browser, Debian's chromium, and pages for it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.client.page import assets

CHROMIUM = Path("/usr/bin/chromium")
# A page that has loaded, or a view that has changed, on a busy machine.
PATIENCE_MS = 60_000
Document = dict[str, Any]
# The feed of a live page for tests: what it shows is sent by `feed.view`.
_FEED = """
window.Orch.liveFeed = () => window.feed = {
  live: true, sent: [],
  runs(onRuns) { this.onRuns = onRuns; onRuns(window.givenRuns || []); },
  open(id, view) { this.view = view; this.opened = id; return () => { this.view = null; }; },
  comparison: () => Promise.resolve(null),
  order(id, verb, given) { this.sent.push([id, verb, given]); return Promise.resolve(""); },
};
"""


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A browser that is closed at the end; a test without one is skipped and says why."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (scripts/setup dev)"
    )
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed (apt-get install chromium)")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        try:
            yield found
        finally:
            found.close()


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open HTML, a file or an address: 1,280 pixels wide and light by default.

    An error of its script or on its console fails the test, unless errors are expected.
    """
    contexts: list[Any] = []
    problems: list[str] = []

    def open_one(
        what: str | Path, *, width: int = 1280, scheme: str = "light", errors_are_expected: bool = False
    ) -> Any:
        if isinstance(what, str) and not what.startswith("http"):
            file = tmp_path / f"page-{len(contexts)}.html"
            file.write_text(what, encoding="utf-8")
            what = file
        context = browser.new_context(viewport={"width": width, "height": 860}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        if not errors_are_expected:
            page.on("console", lambda message: message.type == "error" and problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(f"{error}\n{error.stack}"))
        page.on("dialog", lambda dialog: (problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(what if isinstance(what, str) else what.as_uri())
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert problems == []


def accessibility_faults(page: Any) -> list[tuple[str, list[str]]]:
    """Return the serious findings of axe, each with some of its elements."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    return [
        (found["id"], [node["html"][:150] for node in found["nodes"][:3]])
        for found in axe.run(page).response["violations"]
        if found["impact"] in ("serious", "critical")
    ]


def report_page(
    documents: Sequence[Document], logs: Sequence[Document] = (), comparison: Document | None = None
) -> str:
    """Return a report: the page with its data inlined, under the policy that reports have."""
    given = [("runs", list(documents)), *((f"log-{number}", rows) for number, rows in enumerate(logs))]
    if comparison is not None:
        given.append(("comparison", comparison))
    data = "".join(
        f'<script type="text/plain" id="{name}">{_packed(value)}</script>' for name, value in given
    )
    return _page("<body>", data, assets.page_script())


def live_page(runs: Sequence[Document]) -> str:
    """Return a live page whose feed is `window.feed`: the test calls feed.view.document(...), lines(...)."""
    script = f"window.Orch = {{}}; window.givenRuns = {json.dumps(list(runs))};{_FEED}{assets.page_script()}"
    return _page("<body data-live>", "", script)


def _page(body: str, data: str, script: str) -> str:
    style = assets.page_style()
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; base-uri 'none'"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>orch</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<style>{style}</style></head>{body}{assets.page_body()}{data}<script>{script}</script></body></html>"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _packed(value: object) -> str:
    return base64.b64encode(gzip.compress(json.dumps(value).encode(), 6)).decode()
