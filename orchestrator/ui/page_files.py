"""The files of the live page: those of the report, and the feed of the server in place of the report's."""

from __future__ import annotations

from functools import cache

from orchestrator.client.page import assets

_HTML = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>orch</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="page.css">
</head>
<body data-live>
{body}
<script src="page.js"></script>
</body>
</html>
"""


@cache
def page_html() -> str:
    return _HTML.format(body=assets.page_body())


@cache
def page_script() -> str:
    return assets.page_script(live=True)


@cache
def page_style() -> str:
    return assets.page_style()
