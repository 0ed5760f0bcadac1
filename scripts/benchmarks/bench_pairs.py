"""Shared by all measurements: pairs in one run, medians of their ratios, a table and JSON.

A pair is orch and its comparison, one right after the other and each first in turn, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, NoReturn

import psutil

Measurement = Callable[[], float]
ORCH = Path(sys.executable).with_name("orch")
MEASURED_PACKAGES = ("tf-orch", "tensorflow", "keras", "tf_keras", "honcho")
# Limit of each file. A flood of log lines would otherwise fill the disk if nothing stops it.
LARGEST_FILE_BYTES = 1 << 30
_PATIENCE_S = 20.0


@dataclass
class Compared:
    """A line of the table. `orch` and `other` are the samples, pair by pair, in `unit`. `target` is the largest median
    of their ratios (`at_least`: the smallest); without `other`, the largest median of orch's samples. With `of_worst`
    it is the limit of the largest sample."""

    name: str
    unit: str
    against: str
    target: float | None = None
    at_least: bool = False
    of_worst: bool = False
    orch: list[float] = field(default_factory=list)
    other: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [ours / theirs for ours, theirs in zip(self.orch, self.other, strict=True)]

    @property
    def figure(self) -> float:
        """The median of the ratios; without anything compared, orch's own median, or largest sample."""
        if self.of_worst:
            return max(self.orch)
        return statistics.median(self.ratios if self.other else self.orch)

    @property
    def is_reached(self) -> bool | None:
        if self.target is None:
            return None
        return self.figure >= self.target if self.at_least else self.figure <= self.target


class Bench:
    """A measurement: its arguments, a directory for its runs, the environment of its processes, and its table."""

    def __init__(self, given: argparse.Namespace, directory: Path) -> None:
        self.given = given
        self.directory = directory
        self.state = directory / "state"
        self.env = os.environ | {"XDG_STATE_HOME": str(self.state), "NO_COLOR": "1"}
        # The modules of an installed orch are compiled.
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)
        self.lines: list[Compared] = []
        self._folders = 0

    @property
    def rounds(self) -> range:
        return range(self.given.rounds)

    def line(
        self, name: str, unit: str, aim: float | None = None, against: str = "", **kind: bool
    ) -> Compared:
        self.lines.append(Compared(name, unit, against, aim, **kind))
        return self.lines[-1]

    def folder(self) -> Path:
        """Return a new folder for the files of one run."""
        self._folders += 1
        folder = self.directory / f"out-{self._folders}"
        folder.mkdir()
        return folder

    def orch(self, *words: str | Path) -> str:
        """Run a command of orch to its end, and return its stdout."""
        done = subprocess.run([ORCH, *words], env=self.env, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def timed(self, argv: Sequence[str | Path], out: int | IO[bytes] = subprocess.DEVNULL) -> float:
        """Seconds that a command took."""
        began = time.perf_counter()
        subprocess.run(argv, stdout=out, stderr=subprocess.DEVNULL, env=self.env, check=True)
        return time.perf_counter() - began

    def clear(self) -> None:
        """Remove the runs so far."""
        shutil.rmtree(self.state, ignore_errors=True)


@contextmanager
def bench(name: str, description: str | None, rounds: int, **more: int | str) -> Iterator[Bench]:
    """Measure within the block, then print the table. `more`: further options and their defaults."""
    parser = options((description or "").splitlines()[0], rounds)
    for option, default in more.items():
        parser.add_argument(f"--{option.replace('_', '-')}", type=type(default), default=default)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as directory:
        made = Bench(given, Path(directory))
        yield made
    report(name, [line for line in made.lines if line.orch], given.json)


def pair(compared: Compared, ours: Measurement, theirs: Measurement, round_: int) -> None:
    """Measure both, in turns first."""
    sides = [(compared.orch, ours), (compared.other, theirs)]
    for samples, measure in sides if round_ % 2 == 0 else sides[::-1]:
        samples.append(measure())
    say(f"{compared.name}: {_pair_text(compared, -1)}")


def say(text: str) -> None:
    """Print a text about the progress of the measurement."""
    print(text, file=sys.stderr, flush=True)


def report(name: str, lines: list[Compared], json_file: Path | None) -> None:
    """The table to stdout, everything to `json_file`."""
    about = machine()
    print(f"{name}: {about['date']}, {about['cores']} cores ({about['cpu']}), load {about['load']}")
    print(f"  {about['versions']}")
    width = max(len(line.name) for line in lines)
    print(f"  {'':<{width}}  {'orch':>11}  {'other':>11}  {'ratio':>7}  {'spread':>16}  {'aim':>8}")
    for line in lines:
        print(f"  {line.name:<{width}}  {_row(line)}")
    if json_file is not None:
        measured = [asdict(line) | {"figure": line.figure, "reached": line.is_reached} for line in lines]
        json_file.write_text(json.dumps({"bench": name, "machine": about, "measured": measured}, indent=1))


def _row(line: Compared) -> str:
    ours = _figure(statistics.median(line.orch), line.unit)
    if line.other:
        theirs = _figure(statistics.median(line.other), line.unit)
        ratio, spread = f"{line.figure:7.3f}", f"{min(line.ratios):.2f} to {max(line.ratios):.2f}"
    else:
        theirs, ratio = "", ""
        spread = f"{_figure(min(line.orch))} to {_figure(max(line.orch))}"
    aim = "" if line.target is None else f"{'>=' if line.at_least else '<='} {line.target:g}"
    verdict = {None: "", True: "reached", False: "MISSED"}[line.is_reached]
    many = len(line.orch)
    against = f"; against {line.against}" if line.other else ""
    return f"{ours:>11}  {theirs:>11}  {ratio:>7}  {spread:>16}  {aim:>8}  {verdict} ({many} x{against})"


def _figure(value: float, unit: str = "") -> str:
    number = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{number} {unit}".strip()


def _pair_text(compared: Compared, at: int) -> str:
    ours, theirs = (_figure(samples[at], compared.unit) for samples in (compared.orch, compared.other))
    return f"{ours} with orch, {theirs} by {compared.against}: {compared.ratios[at]:.3f}"


def machine() -> dict[str, object]:
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu,
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "kernel": platform.release(),
        "versions": ", ".join(
            [
                f"Python {platform.python_version()}",
                *(f"{name} {_version(name)}" for name in MEASURED_PACKAGES),
            ]
        ),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def options(description: str, rounds: int) -> argparse.ArgumentParser:
    """The options that all measurements have. Sets what their processes inherit."""
    set_inherited()
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"pairs (default {rounds})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the samples as JSON, too")
    return parser


def set_inherited() -> None:
    """Reset the signals that a shell ignores in the background, and limit what the measurement's processes write.

    SIGINT and SIGTERM end these processes before the measurement removes its files.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft == resource.RLIM_INFINITY or soft > LARGEST_FILE_BYTES:
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE_BYTES, hard))


def _end(number: int, _: object) -> NoReturn:
    started = psutil.Process().children(recursive=True)
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(started, timeout=_PATIENCE_S)
    raise SystemExit(128 + number)


@contextmanager
def waiting_at_most(seconds: float, what: str) -> Iterator[Callable[[], bool]]:
    """A condition's loop: `while not done(): pause()`, ending in an error instead of never."""
    deadline = time.monotonic() + seconds

    def pause() -> bool:
        if time.monotonic() >= deadline:
            raise SystemExit(f"{what}: nothing after {seconds:g} s")
        time.sleep(0.005)
        return True

    yield pause
