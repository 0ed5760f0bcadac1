"""The report: one HTML file that holds the page, the documents of its runs and their logs, and loads nothing."""

from __future__ import annotations

import gzip
import hashlib
import html
import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.client.page.assets import page_body, page_script, page_style
from orchestrator.client.page.comparison import comparison
from orchestrator.client.page.document import RunPage
from orchestrator.client.page.log_rows import REPORT_ROOM, Room, report_logs

_GZIP_LEVEL = 6


def report_html(pages: Sequence[RunPage], room: Room = REPORT_ROOM) -> bytes:
    """Return the report of these runs, which must be refreshed. Several of them are compared."""
    documents = [page.document() for page in pages]
    share = room.part(1 / len(pages))
    script, style = page_script(), page_style()
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script, style)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{html.escape(_title(documents))}</title>",
        f"<style>{style}</style>",
        "</head>",
        "<body>",
        page_body(),
        *_data(pages, documents, share),
        f"<script>{script}</script>",
        "</body>",
        "</html>",
        "",
    ]
    return "\n".join(parts).encode()


def _data(pages: Sequence[RunPage], documents: Sequence[dict[str, Any]], room: Room) -> Iterator[str]:
    yield _embedded("runs", documents)
    for number, page in enumerate(pages):
        yield _embedded(f"log-{number}", report_logs(page.view, page.clock, room))
    if len(documents) > 1:
        yield _embedded("comparison", comparison(documents))


def _embedded(name: str, value: object) -> str:
    """Return an element with data that is not executed. Its alphabet has no character of markup."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    data = b64encode(gzip.compress(text.encode(), _GZIP_LEVEL, mtime=0)).decode()
    return f'<script type="text/plain" id="{name}">{data}</script>'


def _policy(script: str, style: str) -> str:
    """Allow the page's own script and style, by their hashes, and nothing else."""
    return (
        f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )


def _source(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _title(documents: Sequence[dict[str, Any]]) -> str:
    names = " and ".join(document["run"]["id"] for document in documents[:2])
    more = f" and {len(documents) - 2} more" if len(documents) > 2 else ""
    state = f" {documents[0]['run']['state'].replace('_', ' ')}" if len(documents) == 1 else ""
    return f"{names}{more}{state} · orch"
