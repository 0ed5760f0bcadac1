"""What documents show: the README's pictures, and each cell of strategy x loop and each command of docs/strategies/,
which trains or is refused as the pages say."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyte
import pytest
from orch_command import Orch

ROOT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "scripts/tools"))

from record_page import DOCS, PICTURES, faults  # noqa: E402
from record_screens import COLUMNS, LINES, differences, draw, words_of  # noqa: E402
from strategy_cells import CELLS, STATED_ACCURACY, Cell, run_cell  # noqa: E402

PAGES = {page.stem: page.read_text() for page in sorted((ROOT / "docs" / "strategies").glob("*.md"))}
LONGEST_RUN_S = 400.0
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FIGURE = re.compile(r"\d+(?:[.,]\d+)*")
# Trainings take minutes together, so that scripts/test --all runs them. The gate runs what is refused.
trains = [pytest.mark.slow, pytest.mark.timeout(600)]
LOOK = """
import json, os
names = ("ORCH_TASK", "ORCH_MESH", "CUDA_VISIBLE_DEVICES", "DTENSOR_CLIENT_ID", "DTENSOR_JOBS")
print(json.dumps({name: os.environ.get(name) for name in names}))
"""

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


def _row(cell: Cell) -> str:
    (row,) = (line for line in PAGES["README"].splitlines() if f"| `{cell.command}` |" in line)
    return row


TRAINED = [cell for cell in CELLS if "| refused: " not in _row(cell)]


@dataclass(frozen=True)
class Shown:
    """A command of a page and the lines below it; a lone `...` stands for lines that are not shown."""

    page: str
    command: str
    lines: tuple[str, ...]

    @property
    def is_refused(self) -> bool:
        return len(self.lines) == 1 and self.lines[0].startswith("orch: ")

    def check(self, orch: Orch) -> None:
        """The command prints what the page shows, apart from the figures."""
        program, *words = shlex.split(self.command)
        assert program == "orch"
        done = orch(*words, cwd=ROOT, timeout_s=LONGEST_RUN_S)
        assert done.code == (2 if self.is_refused else 0), done.out + done.err
        printed = {figureless(line) for line in (done.out + done.err).splitlines()}
        shown = [line for line in self.lines if line.strip() not in ("", "...")]
        assert not [line for line in shown if figureless(line) not in printed], done.out + done.err


def figureless(line: str) -> str:
    """The line without numbers, names of runs and paths, which differ from run to run."""
    line = re.sub(r"\S*/\S+", "PATH", line)
    line = re.sub(r"\b\w[\w.-]*-\d{8}T\d{6}Z-[0-9a-f]{4}\b", "RUN", line)
    line = re.sub(r"\b(?:\d+h)?(?:\d+m)?[\d.]+m?s\b", "TIME", line)
    return re.sub(r"\s+", " ", _FIGURE.sub("N", line)).strip()


SHOWN = [
    Shown(page, command.partition("  #")[0].strip(), tuple(lines))
    for page, text in PAGES.items()
    for block in _BLOCK.findall(text)
    for command, *lines in (
        part.rstrip("\n").split("\n") for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    )
]


def test_every_strategy_has_a_page_with_commands() -> None:
    strategies = {cell.strategy for cell in CELLS}
    assert set(PAGES) - {"README"} == strategies == {one.page for one in SHOWN} - {"README"}


def test_what_the_pages_show_as_refused_is_refused(orch: Orch) -> None:
    for cell in set(CELLS) - set(TRAINED):
        done = orch("up", *cell.words)
        assert (done.code, done.out) == (2, ""), cell.name
        assert _row(cell).partition("| refused: ")[2].rstrip(" |") in " ".join(done.err.split()), done.err
    for one in SHOWN:
        if one.is_refused:
            one.check(orch)
    assert not orch.run_dirs(), "refused before anything was started"


@pytest.mark.parametrize("cell", [pytest.param(cell, id=cell.name, marks=trains) for cell in TRAINED])
def test_cell_trains(orch: Orch, cell: Cell) -> None:
    outcome = run_cell(cell, orch.directory, orch.environ())
    assert outcome.accuracy is not None and outcome.accuracy >= STATED_ACCURACY, outcome.output
    assert "| trains: held-out accuracy 0.9" in _row(cell)
    assert not list(orch.directory.iterdir()), "a run leaves nothing in the user's directory"


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(one, id=f"{one.page}-{number}", marks=trains)
        for number, one in enumerate(SHOWN)
        if not one.is_refused
    ],
)
def test_command_prints_what_the_page_shows(orch: Orch, one: Shown) -> None:
    one.check(orch)


def test_tasks_with_different_environments_are_forked(orch: Orch) -> None:
    words = ("--preload", "json", "--no-prefix", "--mesh", "batch=2,model=2", "-n", "2", "--gpus", "none")
    done = orch.run(*words, script=LOOK)
    assert done.code == 0, done.err
    assert orch.methods() == {"fork"}
    variables = {each["ORCH_TASK"]: each for each in map(json.loads, done.lines)}
    clients = {task: each["DTENSOR_CLIENT_ID"] for task, each in variables.items()}
    assert clients == {"worker:0": "0", "worker:1": "1"}
    assert {each["CUDA_VISIBLE_DEVICES"] for each in variables.values()} == {"-1"}
    (jobs,) = {each["DTENSOR_JOBS"] for each in variables.values()}
    assert jobs.count("127.0.0.1:") == 2


# -- pictures


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
