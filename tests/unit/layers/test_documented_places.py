"""The files and functions that docs/how-a-run-works.md names exist, and the tests that docs/threat-model.md names."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "how-a-run-works.md"
THREATS = ROOT / "docs" / "threat-model.md"


def defines(file: Path, name: str) -> bool:
    pattern = rf"^\s*(?:def|class) {name}\b"
    return file.exists() and bool(re.search(pattern, file.read_text(), re.MULTILINE))


def test_documented_places_exist() -> None:
    places = set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)(?:: ([\w.]+))?`", PAGE.read_text()))
    assert len(places) > 30
    missing = []
    for path, name in sorted(places):
        file = next((place for place in (ROOT / path, ROOT / "orchestrator" / path) if place.exists()), None)
        if file is None or (name and not defines(file, name.rpartition(".")[2])):
            missing.append(f"{path}: {name}")
    assert missing == []


def test_page_names_at_most_35_files_for_one_run() -> None:
    text = PAGE.read_text()
    way = text[text.index("## One real run") : text.index("## When a task fails")]
    assert len(set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)", way))) <= 35


def test_every_attack_names_a_test_that_exists() -> None:
    text = THREATS.read_text()
    lines = [line for line in text[text.index("## Attacks") :].splitlines() if line.startswith("| ")]
    attacks = [line for line in lines if not line.startswith("| attack ")]
    tests = set(re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9]+)*/test_[a-z_0-9]+\.py)::(test_\w+)`", text))
    assert len(attacks) >= len(tests) > 50
    assert [line for line in attacks if "::test_" not in line] == []
    missing = [f"{path}::{name}" for path, name in tests if not defines(ROOT / "tests" / path, name)]
    assert missing == []
