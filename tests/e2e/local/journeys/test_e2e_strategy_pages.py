"""The commands in docs/strategies/ print the lines that the pages show, apart from the figures."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from orch_command import Orch

ROOT = Path(__file__).resolve().parents[4]
PAGES = sorted((ROOT / "docs" / "strategies").glob("*.md"))
# Quick enough for the gate; scripts/test --all runs the others.
QUICK = ("orch up --strategy one-device --device CPU:0 -- --epochs 3 --loop custom", "orch up --strategy tpu")
LONGEST_RUN_S = 400.0
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FIGURE = re.compile(r"\d+(?:[.,]\d+)*")
pytestmark = pytest.mark.timeout(420)


@dataclass(frozen=True)
class Shown:
    """A command of a page and the lines below it; a lone `...` stands for lines that are not shown."""

    page: str
    command: str
    lines: tuple[str, ...]


def shown() -> list[Shown]:
    found = []
    for page in PAGES:
        for block in _BLOCK.findall(page.read_text()):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, *lines = part.rstrip("\n").split("\n")
                found.append(Shown(page.name, command.partition("  #")[0].strip(), tuple(lines)))
    return found


SHOWN = shown()


@pytest.mark.parametrize(
    "this",
    [
        pytest.param(
            one,
            id=f"{one.page}-{number}",
            marks=() if one.command in QUICK else (pytest.mark.slow,),
        )
        for number, one in enumerate(SHOWN)
    ],
)
def test_command_prints_what_the_page_shows(orch: Orch, this: Shown) -> None:
    program, *words = shlex.split(this.command)
    assert program == "orch"
    done = orch(*words, cwd=ROOT, timeout_s=LONGEST_RUN_S)
    printed = {figureless(line) for line in (done.out + done.err).splitlines()}
    refused = len(this.lines) == 1 and this.lines[0].startswith("orch: ")
    assert done.code == (2 if refused else 0), done.out + done.err
    missing = [
        line for line in this.lines if line.strip() not in ("", "...") and figureless(line) not in printed
    ]
    assert not missing, done.out + done.err


def figureless(line: str) -> str:
    """The line without numbers, names of runs and paths, which differ from run to run."""
    line = re.sub(r"\S*/\S+", "PATH", line)
    line = re.sub(r"\b\w[\w.-]*-\d{8}T\d{6}Z-[0-9a-f]{4}\b", "RUN", line)
    line = re.sub(r"\b(?:\d+h)?(?:\d+m)?[\d.]+m?s\b", "TIME", line)
    return re.sub(r"\s+", " ", _FIGURE.sub("N", line)).strip()


def test_every_strategy_has_a_page() -> None:
    assert {page.stem for page in PAGES} == {
        "README",
        "multi-worker-mirrored",
        "mirrored",
        "one-device",
        "central-storage",
        "parameter-server",
        "tpu",
        "dtensor",
    }
    assert {one.page for one in SHOWN} == {page.name for page in PAGES if page.stem != "README"}
