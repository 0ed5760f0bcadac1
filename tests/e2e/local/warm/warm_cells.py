"""Faults that hit kept processes, between two runs or during one. run_cell() checks the runs and what is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil
from acting_as import as_user
from control_groups import MemoryGroup, NoGroup
from orch_command import Finished
from small_disk import SmallDisk
from users import ORDINARY
from waiting import until, until_gone
from warm_command import OnTerminal, WarmOrch

_LOOK = """
import decimal, os, time
print("said", flush=True)
while os.path.exists("hold") and not os.path.exists("go"):
    time.sleep(0.01)
"""
_RIGHT = (0, ["worker:0 | said"])
_NO_PRESSURE = (
    "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
)


class Part(StrEnum):
    HOLDER = "holder"  # the supervisor
    AGENT = "agent"
    PRELOADER = "preloader"


class NotAvailable(Exception):
    """The reason why a fault cannot be made on this machine."""


class Kept:
    """A directory in which a run has left processes. `disk`: where orch's files are, if it is not the machine's."""

    def __init__(self, warm: WarmOrch, disk: SmallDisk | None = None) -> None:
        self.warm = warm
        self.disk = disk
        self.directory = warm.orch.directory
        self._before = disk.before(self.directory) if disk else ()
        script = warm.orch.script("look.py", _LOOK)
        self.words = ("up", "--warm", "--preload", "decimal", "--", sys.executable, script)
        self.parts: dict[Part, psutil.Process] = {}
        self.seen: set[int] = set()
        # The `orch up` of a live run.
        self.client: OnTerminal | None = None
        # Ends what a fault needs during that run.
        self.until_the_end = ExitStack()

    def orch(self, *words: str) -> Finished:
        return self.warm(*words, before=self._before)

    def require_right(self) -> int:
        """Assert that the next run does what it must, and return the pid of its supervisor."""
        done = self.orch(*self.words)
        assert (done.code, done.lines) == _RIGHT, done.err
        records = (self.warm.state / "orch" / "runs").glob("[!.]*/run.json")
        newest = max(records, key=lambda file: file.stat().st_mtime_ns)
        return int(json.loads(newest.read_text())["supervisor_pid"])

    def note(self) -> None:
        """Note the processes that wait for the next run."""
        holder = self.warm.until_waiting()
        (agent,) = holder.children()
        (preloader,) = agent.children()
        self.parts = {Part.HOLDER: holder, Part.AGENT: agent, Part.PRELOADER: preloader}
        self.seen |= {process.pid for process in self.parts.values()}

    def begin_run(self) -> None:
        """Start a run, and return when its task waits for go()."""
        (self.directory / "hold").touch()
        self.client = self.warm.start(*self.words, before=self._before)
        assert self.client.process.stdout is not None
        assert self.client.process.stdout.readline() == "worker:0 | said\n"

    def go(self) -> None:
        (self.directory / "go").touch()

    def end_run(self) -> Finished:
        """Wait for the end of the run."""
        assert self.client is not None
        with self.until_the_end, closing(self.client) as client:
            done = client.finish()
        self.client = None
        for name in ("hold", "go"):
            (self.directory / name).unlink(missing_ok=True)
        return done

    def signal(self, part: Part, number: signal.Signals) -> None:
        process = self.parts[part]
        process.send_signal(number)
        if number == signal.SIGSTOP:
            until(lambda: process.status() == psutil.STATUS_STOPPED)

    @property
    def place(self) -> Path:
        (place,) = self.warm.places
        return place


Injection = Callable[[Kept], None]


@dataclass(frozen=True)
class Cell:
    """A fault. `ends`: the possible exit codes of the run during which it happens; empty: it is between two runs.

    `stays`: whether the same holder serves the next run; None: either. `needs_disk`: orch's files are on a small disk.
    """

    fault: str
    inject: Injection
    ends: tuple[int, ...] = ()
    stays: bool | None = False
    needs_disk: bool = False

    @property
    def name(self) -> str:
        return f"{self.fault} | {'during a run' if self.ends else 'between two runs'}"


def run_cell(cell: Cell, kept: Kept) -> None:
    """Run one cell. AssertionError for any finding, NotAvailable if it cannot run here."""
    kept.require_right()
    kept.note()
    holder = kept.parts[Part.HOLDER]
    if cell.ends:
        kept.begin_run()
    cell.inject(kept)
    if cell.ends:
        done = kept.end_run()
        assert done.code in cell.ends, done.err
    is_same = kept.require_right() == holder.pid
    assert cell.stays in (is_same, None)
    kept.note()
    assert kept.orch("warm", "stop").code == 0
    until_gone(*kept.seen)
    until(lambda: kept.warm.places == [])


def send(part: Part, number: signal.Signals) -> Injection:
    return lambda kept: kept.signal(part, number)


def in_sequence(*injections: Injection) -> Injection:
    def inject(kept: Kept) -> None:
        for each in injections:
            each(kept)

    return inject


def go(kept: Kept) -> None:
    kept.go()


def wait_until_gone(part: Part) -> Injection:
    return lambda kept: until_gone(kept.parts[part].pid)


def run_beside(kept: Kept) -> None:
    """Check that another run works meanwhile."""
    script = kept.warm.orch.script("beside.py", "print('beside')")
    done = kept.orch("up", "--warm", "--", sys.executable, script)
    assert (done.code, done.lines) == (0, ["worker:0 | beside"]), done.err


def down(kept: Kept) -> None:
    """`orch down`. Its exit code does not count."""
    kept.orch("down")


def remove_place(kept: Kept) -> None:
    shutil.rmtree(kept.place)


def remove_directory(kept: Kept) -> None:
    """Move the directory of the runs away, and make another one of the same name."""
    kept.directory.rename(kept.directory.with_name("moved"))
    kept.directory.mkdir()
    kept.warm.orch.script("look.py", _LOOK)


def remove_run(kept: Kept) -> None:
    run = kept.warm.orch.run_dirs()[-1]
    run.rename(run.parents[2] / "moved")


def fill_disk(kept: Kept) -> None:
    assert kept.disk is not None
    kept.disk.fill()


def fill_disk_for_the_run(kept: Kept) -> None:
    fill_disk(kept)
    kept.until_the_end.callback(make_room, kept)


def refused(kept: Kept) -> None:
    """Check that no run starts on a full disk, and that the reason is shown."""
    done = kept.orch(*kept.words)
    assert done.code == 2 and "No space left on device" in done.err, done.err


def make_room(kept: Kept) -> None:
    assert kept.disk is not None
    kept.disk.make_room()


def show_pressure(kept: Kept) -> None:
    """Let the holder read that all processes of the machine wait for memory."""
    assert kept.disk is not None
    shown = kept.disk.seen / "pressure"
    shown.write_text(_NO_PRESSURE.replace("full avg10=0.00", "full avg10=60.00"))
    target = "/proc/pressure/memory"
    argv = [*kept.disk.before(kept.directory), "mount", "--bind", str(kept.disk.path / "pressure"), target]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotAvailable(f"{target} cannot be replaced here: {done.stderr.strip()}")


def release_pressure(kept: Kept) -> None:
    assert kept.disk is not None
    (kept.disk.seen / "pressure").write_text(_NO_PRESSURE)


def _opened_to_others(kept: Kept) -> Path:
    if os.geteuid() != 0:
        raise NotAvailable("needs root to become another user")
    kept.place.chmod(0o711)
    return kept.place


def connect_as_another_user(kept: Kept) -> None:
    """Check that the holder closes the connection of another user, although the modes are opened for all."""
    place = _opened_to_others(kept)
    (place / "socket").chmod(0o666)
    there = os.open(place, os.O_PATH)

    def received() -> bytes:
        os.fchdir(there)
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            client.connect("socket")
            return client.recv(1)

    try:
        assert as_user(ORDINARY, received) == b""
    finally:
        os.close(there)
        place.chmod(0o700)


def find_no_socket(kept: Kept) -> None:
    """Check that no process listens during a run, and that another user can do nothing with the open directory."""
    place = _opened_to_others(kept)
    assert not (place / "socket").exists()
    place.chmod(0o700)


def take_memory(part: Part) -> Injection:
    """Let the kernel give a process no more memory until the end of the run."""

    def inject(kept: Kept) -> None:
        try:
            group = kept.until_the_end.enter_context(MemoryGroup(64 << 10))
        except NoGroup as reason:
            raise NotAvailable(str(reason)) from reason
        pid = kept.parts[part].pid
        before = group.of(pid)
        group.take(pid)
        kept.until_the_end.callback(group.give_back, before)

    return inject


def run_without_memory(part: Part) -> Injection:
    """Start a run with take_memory(). It may fail, but must end."""

    def inject(kept: Kept) -> None:
        with kept.until_the_end:
            take_memory(part)(kept)
            assert kept.orch(*kept.words).code in (0, 125, 137)

    return inject


KILL, STOP, CONT = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT
HOLDER, AGENT, PRELOADER = Part.HOLDER, Part.AGENT, Part.PRELOADER
RIGHT, ORCH_FAILED = (0,), (125,)

_PRESSURE = "all processes of the machine wait for memory"
_MEETS_PRESSURE = in_sequence(wait_until_gone(HOLDER), release_pressure)
_STOPPED_FOR_A_WHILE = in_sequence(send(HOLDER, STOP), run_beside, send(HOLDER, CONT), go)

BETWEEN = (
    Cell("SIGKILL of the holder", send(HOLDER, KILL)),
    Cell("SIGKILL of the agent", send(AGENT, KILL)),
    Cell(
        "SIGKILL of the preloader", in_sequence(send(PRELOADER, KILL), wait_until_gone(PRELOADER)), stays=True
    ),
    Cell("SIGSTOP of the holder", send(HOLDER, STOP)),
    Cell("SIGSTOP of the agent", send(AGENT, STOP)),
    Cell("SIGSTOP of the preloader", send(PRELOADER, STOP)),
    *(
        Cell(f"the {part} gets no more memory in a run", run_without_memory(part), stays=None)
        for part in Part
    ),
    Cell(_PRESSURE, in_sequence(show_pressure, _MEETS_PRESSURE), needs_disk=True),
    Cell("the holder's files are removed", remove_place),
    Cell("the directory is replaced", remove_directory),
    Cell("the disk is full", in_sequence(fill_disk, refused, make_room), stays=None, needs_disk=True),
    Cell("another user connects", connect_as_another_user, stays=True),
)
DURING = (
    Cell("SIGKILL of the holder", send(HOLDER, KILL), ORCH_FAILED),
    Cell("SIGKILL of the agent", send(AGENT, KILL), ORCH_FAILED),
    Cell("SIGKILL of the preloader", in_sequence(send(PRELOADER, KILL), go), RIGHT, stays=True),
    Cell("SIGSTOP of the holder, another run, SIGCONT", _STOPPED_FOR_A_WHILE, RIGHT, stays=True),
    Cell("SIGSTOP of the agent, then `down`", in_sequence(send(AGENT, STOP), down), ORCH_FAILED),
    Cell("SIGSTOP of the preloader", in_sequence(send(PRELOADER, STOP), go), RIGHT),
    *(
        Cell(f"the {part} gets no more memory", in_sequence(take_memory(part), go), (0, 125), stays=None)
        for part in Part
    ),
    Cell(_PRESSURE, in_sequence(show_pressure, go, _MEETS_PRESSURE), RIGHT, needs_disk=True),
    Cell("the holder's files are removed", in_sequence(remove_place, go), RIGHT),
    Cell("the run's directory is removed", remove_run, ORCH_FAILED, stays=None),
    Cell("the disk is full", fill_disk_for_the_run, ORCH_FAILED, stays=None, needs_disk=True),
    Cell("another user connects", in_sequence(find_no_socket, go), RIGHT, stays=True),
)
CELLS = (*BETWEEN, *DURING)
BY_NAME = {cell.name: cell for cell in CELLS}
assert len(BY_NAME) == len(CELLS), "two cells have the same name"

# The cells of the quick gate.
REPRESENTATIVE = frozenset(
    {
        "SIGKILL of the holder | between two runs",
        "SIGKILL of the agent | between two runs",
        "SIGSTOP of the preloader | between two runs",
        "another user connects | between two runs",
        "SIGKILL of the agent | during a run",
        "SIGKILL of the preloader | during a run",
    }
)
assert set(BY_NAME) >= REPRESENTATIVE


def table() -> str:
    """The cells as a Markdown table."""
    lines = ["| fault | when | the run then | the next run |", "|---|---|---|---|"]
    serves = {True: "warm", False: "cold", None: "warm or cold"}
    for cell in CELLS:
        when = "during a run" if cell.ends else "between two runs"
        ends = " or ".join(map(str, cell.ends)) or "-"
        lines.append(f"| {cell.fault} | {when} | {ends} | {serves[cell.stays]} |")
    return "\n".join(lines)
