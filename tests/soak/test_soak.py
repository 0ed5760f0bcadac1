"""Random faults, cells of the matrix again and again, and what a session holds after many runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from cell_run import run_cell
from cells import Cell, NotAvailable, Way
from draws import draw
from matrix import MATRIX
from random_faults import RandomRun, run_random

from orchestrator import Session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
_LIGHT = [cell for cell in MATRIX if cell.way is not Way.TENSORFLOW]
_FIRST_LOOK = 20
# Growth that an allocator can cause, of about 30 MB.
_MAY_GROW_BYTES = 1 << 20
# Quick ends of every kind, by turns.
_ENDS = (
    ("exit 0", "succeeded"),
    ("exit 3", "failed"),
    ("kill -KILL $$", "failed"),
    ("sleep 600", "timed_out"),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    option = metafunc.config.getoption
    if "number" in metafunc.fixturenames:
        metafunc.parametrize("number", range(option("runs", 10)))
    if "again" in metafunc.fixturenames:
        # All cells once before any of them again.
        metafunc.parametrize(
            "again",
            [
                pytest.param(cell, id=f"{cell.name} #{n}")
                for n in range(option("times", 0))
                for cell in _LIGHT
            ],
        )


def run(what: Cell | RandomRun, directory: Path, patch: pytest.MonkeyPatch) -> None:
    (directory / "tmp").mkdir()
    (directory / "run").mkdir()
    patch.setenv("TMPDIR", str(directory / "tmp"))
    try:
        if isinstance(what, RandomRun):
            run_random(what, directory / "run")
        else:
            run_cell(what, directory / "run")
    except NotAvailable as reason:
        pytest.skip(str(reason))


def test_random_faults(
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
    no_leaked_descriptors: None,
) -> None:
    what = draw(pytestconfig.getoption("seed", 0), number)
    print(what.name)
    run(what, tmp_path, monkeypatch)


def test_matrix_again(
    again: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_leaked_descriptors: None
) -> None:
    run(again, tmp_path, monkeypatch)


@dataclass(frozen=True)
class Held:
    """Memory (bytes) and descriptors of one process. PSS depends on which other processes map the same libraries;
    `own`, memory in no file, does not."""

    pid: int
    pss_bytes: int
    own_bytes: int
    descriptors: int

    @classmethod
    def by(cls, process: psutil.Process) -> Held:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
        kb = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return cls(process.pid, kb["Pss"] << 10, kb["Anonymous"] << 10, process.num_fds())


@pytest.mark.timeout(3600)
def test_a_session_holds_as_much_after_many_runs(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    runs = max(pytestconfig.getoption("session", 40), _FIRST_LOOK)
    looks: list[list[Held]] = []
    with Session() as session:
        for number in range(1, runs + 1):
            words, outcome = _ENDS[number % len(_ENDS)]
            limit = {"timeout": "100ms"} if outcome == "timed_out" else {}
            with session.up(workers=2, command=["sh", "-c", words], directory=tmp_path, **limit) as started:
                assert started.wait(check=False).outcome == outcome
            if number in (_FIRST_LOOK, runs):
                supervisor = psutil.Process(started.view.record.supervisor_pid)
                looks.append([Held.by(supervisor), *map(Held.by, supervisor.children())])
    print(*looks, sep="\n")  # shown by -s
    for first, last in zip(looks[0], looks[-1], strict=True):
        assert last.pid == first.pid
        assert last.own_bytes - first.own_bytes <= _MAY_GROW_BYTES, (first, last)
        assert last.descriptors <= first.descriptors, (first, last)
