"""The README's pictures show what orch shows now, and scripts/bench names its measurements."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pyte
import pytest

ROOT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "scripts/tools"))

from record_page import DOCS, PICTURES, faults  # noqa: E402
from record_screens import COLUMNS, LINES, differences, draw, words_of  # noqa: E402

SCREEN = """$ orch up --workers 4
worker:0 | Epoch {n}/10
         | a long line that continues
worker:0,2-3 | loss {n}.25 <b>
chief:0 worker:0-1 | {n} steps
  \u2502 a quoted line
\x1b[1mTASK\x1b[0m      {column}     PID
worker:0  \x1b[32mrunning\x1b[0m   {n}
orch: digits-20261122T193202Z-{n} failed after {n}s: see /tmp/x{n}/logs
"""


def picture(path: Path, text: str) -> Path:
    screen = pyte.Screen(COLUMNS, LINES)
    pyte.Stream(screen).feed(text.replace("\n", "\r\n"))
    draw(screen, path)
    return path


def test_pictures_with_other_words_differ_and_with_other_numbers_do_not(tmp_path: Path) -> None:
    """The words are those of orch, not of the tasks."""
    old = picture(tmp_path / "a.svg", SCREEN.format(n=17, column="STATE"))
    assert words_of(old) == {*["TASK", "STATE", "PID", "running", "orch", "failed", "after", "see"]}
    assert differences(old, picture(tmp_path / "b.svg", SCREEN.format(n=4, column="STATE"))) == []
    assert differences(old, picture(tmp_path / "c.svg", SCREEN.format(n=4, column="DOES"))) == [
        "a.svg: no longer shown: STATE",
        "a.svg: not in the picture: DOES",
    ]


def test_pictures_of_the_page_are_there_and_shown(tmp_path: Path) -> None:
    assert list(faults(DOCS)) == []
    (tmp_path / "README.md").write_text("docs/page-run.png")
    docs = tmp_path / "docs"
    docs.mkdir()
    shutil.copy(DOCS / PICTURES[1][0], docs / PICTURES[0][0])
    assert list(faults(docs)) == [
        "docs/page-run.png: has another size than 1280 x 1180; scripts/tools/record draws it again",
        "docs/page-logs.png: is missing, or not a PNG; scripts/tools/record draws it",
        "docs/page-logs.png: the README does not show it",
    ]


def test_unknown_measurement_is_refused() -> None:
    for words in ((), ("start step",), ("../bench_start",)):
        done = subprocess.run([ROOT / "scripts/bench", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 2 and "name one of: start step" in done.stderr, words


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pictures_are_current() -> None:
    words = [sys.executable, ROOT / "scripts/tools/record_screens.py", "--check"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
