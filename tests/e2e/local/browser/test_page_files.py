"""The files of the page: text becomes markup nowhere, and nothing comes from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.client.page import assets

FOLDER = Path(assets.__file__).with_name("assets")
OWN = sorted(path for path in FOLDER.iterdir() if path.is_file())
# Ways from text to markup or code, and attributes that a Content-Security-Policy forbids.
_MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|createContextualFragment"
    r"|DOMParser|srcdoc|setAttribute\(\"(?:style|on)|\sstyle=|\son\w+=\""
)
_ELSEWHERE = re.compile(r"https?://[\w]|@import|url\((?!data:)")


def test_text_never_becomes_markup_and_nothing_is_loaded_from_elsewhere() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in OWN}
    found = {name: _MARKUP.findall(text) + _ELSEWHERE.findall(text) for name, text in texts.items()}
    assert not {name: each for name, each in found.items() if each}
    assert not [name for name, text in texts.items() if len(text.splitlines()) > 400]


def test_every_script_is_part_of_the_report_or_of_the_live_page() -> None:
    feeds = {"report_feed.js", "live_feed.js"}
    named = {Path(name).name for name in (*assets.SCRIPTS, *assets.STYLES)} | feeds | {"page.js", "page.html"}
    assert {path.name for path in OWN} <= named
    assert assets.page_script().count("Orch.start(") == 1


def test_uplot_has_its_licence_and_version() -> None:
    version = (FOLDER / "uplot" / "VERSION").read_text(encoding="utf-8")
    assert re.match(r"uplot [\d.]+\nintegrity sha512-", version)
    assert "MIT License" in (FOLDER / "uplot" / "LICENSE").read_text(encoding="utf-8")
