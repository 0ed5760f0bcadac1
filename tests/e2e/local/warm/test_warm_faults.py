"""After any fault of a kept process, the next `orch up --warm` is right, and nothing is left (docs/reliability.md)."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from small_disk import NoDisk, SmallDisk
from waiting import until, until_gone
from warm_cells import CELLS, REPRESENTATIVE, Cell, Kept, NotAvailable, run_cell, table
from warm_command import WarmOrch

_DOCUMENT = Path(__file__).parents[4] / "docs" / "reliability.md"
# Room for all files of several short runs.
_DISK_BYTES = 8 << 20
WAITS = ("--", "sh", "-c", "echo began; sleep 600 & wait")
ECHO = ("--", "sh", "-c", "echo said")


def _marks(cell: Cell) -> list[pytest.MarkDecorator]:
    return [] if cell.name in REPRESENTATIVE else [pytest.mark.slow]


@pytest.mark.parametrize("cell", [pytest.param(cell, id=cell.name, marks=_marks(cell)) for cell in CELLS])
def test_cell(cell: Cell, warm: WarmOrch) -> None:
    try:
        if not cell.needs_disk:
            run_cell(cell, Kept(warm))
            return
        with SmallDisk(warm.orch.state, _DISK_BYTES) as disk:
            warm.state = disk.seen
            run_cell(cell, Kept(warm, disk))
    except (NoDisk, NotAvailable) as reason:
        pytest.skip(str(reason))


def test_documentation_contains_the_cells() -> None:
    assert table() in _DOCUMENT.read_text()


@pytest.mark.parametrize(
    ("part", "code", "outcome"),
    [("supervisor", None, "lost"), ("client", None, "stopped"), ("task", 137, "failed")],
)
def test_killed_part_of_a_run(warm: WarmOrch, part: str, code: int | None, outcome: str) -> None:
    warm("up", "--warm", *ECHO)
    supervisor = warm.until_waiting()
    (agent,) = supervisor.children()
    with closing(warm.start("up", "--warm", *WAITS)) as started:
        run = until(lambda: next(iter(warm.orch.run_dirs()[1:]), None))
        task = psutil.Process(warm.orch.pids()[0])
        below = [supervisor, agent, *task.children(recursive=True), task]
        killed = {
            "supervisor": supervisor.pid,
            "client": started.process.pid,
            "task": task.pid,
        }
        psutil.Process(killed[part]).send_signal(signal.SIGKILL)
        done = started.finish()
    if code is not None:
        assert done.code == code, done.err
    until(lambda: warm.orch.status(run.name)["run"]["state"] not in ("running", "stopping"))
    assert warm.orch.status(run.name)["run"]["state"] == outcome
    until_gone(*(process.pid for process in below[2:]))
    if part == "supervisor":
        until_gone(supervisor.pid, agent.pid)
    again = warm("up", "--warm", *ECHO)
    assert (again.code, again.lines) == (0, ["worker:0 | said"])
