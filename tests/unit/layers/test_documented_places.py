"""The files and functions that docs/how-a-run-works.md names exist, and the tests that docs/threat-model.md names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "how-a-run-works.md"
THREATS = ROOT / "docs" / "threat-model.md"
PLACES = sorted(set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)(?:: ([\w.]+))?`", PAGE.read_text())))


@pytest.mark.parametrize(("path", "name"), PLACES)
def test_documented_place_exists(path: str, name: str) -> None:
    file = next(place for place in (ROOT / path, ROOT / "orchestrator" / path) if place.exists())
    last = name.rpartition(".")[2]
    assert not name or re.search(rf"^\s*(?:def|class) {last}\b", file.read_text(), re.MULTILINE)


def test_page_names_at_most_35_files_for_one_run() -> None:
    text = PAGE.read_text()
    way = text[text.index("## One real run") : text.index("## When a task fails")]
    assert len(set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)", way))) <= 35


TESTS = sorted(set(re.findall(r"`([a-z_0-9]+/test_[a-z_0-9]+\.py)::(test_\w+)`", THREATS.read_text())))


@pytest.mark.parametrize(("path", "name"), TESTS)
def test_test_of_the_threat_model_exists(path: str, name: str) -> None:
    assert re.search(rf"^def {name}\(", (ROOT / "tests" / path).read_text(), re.MULTILINE)


def test_every_attack_names_its_test() -> None:
    text = THREATS.read_text()
    lines = [line for line in text[text.index("## Attacks") :].splitlines() if line.startswith("| ")]
    attacks = [line for line in lines if not line.startswith("| attack ")]
    assert len(attacks) >= len(TESTS) > 50
    assert [line for line in attacks if "::test_" not in line] == []
