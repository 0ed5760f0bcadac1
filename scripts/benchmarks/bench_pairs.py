"""Shared by all measurements: pairs in one run, medians of their ratios, a table and JSON.

A pair is orch and its comparison, one right after the other and each first in turn, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import IO, NoReturn

import psutil

_TESTS = Path(__file__).resolve().parents[2] / "tests"
# Measurements import from there what the tests have: pretended hosts, staged runs, a browser.
sys.path[:0] = [str(_TESTS / "support"), str(_TESTS / "e2e/local/faults")]

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
    target: float | None = None
    against: str = ""
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
        return max(self.orch) if self.of_worst else median(self.ratios if self.other else self.orch)

    @property
    def is_reached(self) -> bool | None:
        if self.target is None:
            return None
        return self.figure >= self.target if self.at_least else self.figure <= self.target

    @property
    def row(self) -> str:
        """The line without its name."""
        theirs, ratio, against = "", "", ""
        spread = f"{_figure(min(self.orch))} to {_figure(max(self.orch))}"
        if self.other:
            theirs, ratio = _figure(median(self.other), self.unit), f"{self.figure:.3f}"
            spread = f"{min(self.ratios):.2f} to {max(self.ratios):.2f}"
            against = f"; against {self.against}"
        aim = "" if self.target is None else f"{'>=' if self.at_least else '<='} {self.target:g}"
        verdict = {None: "", True: "reached", False: "MISSED"}[self.is_reached]
        ours = _figure(median(self.orch), self.unit)
        cells = f"{ours:>11}  {theirs:>11}  {ratio:>7}  {spread:>16}  {aim:>8}"
        return f"{cells}  {verdict} ({len(self.orch)} x{against})"


class Bench:
    """A measurement: its arguments, a directory for its runs, the environment of its processes, and its table."""

    def __init__(self, given: argparse.Namespace, directory: Path) -> None:
        self.given = given
        self.rounds = range(given.rounds)
        self.directory = directory
        self.state = directory / "state"
        self.env = os.environ | {"XDG_STATE_HOME": str(self.state), "NO_COLOR": "1"}
        # The modules of an installed orch are compiled.
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)
        self.lines: list[Compared] = []

    def line(
        self, name: str, unit: str, aim: float | None = None, against: str = "", **kind: bool
    ) -> Compared:
        self.lines.append(Compared(name, unit, aim, against, **kind))
        return self.lines[-1]

    def take(self, line: Compared, measure: Measurement) -> None:
        """Measure once a round."""
        for _ in self.rounds:
            line.orch.append(measure())
            say(f"{line.name}: {_figure(line.orch[-1], line.unit)}")

    def compare(self, line: Compared, ours: Measurement, theirs: Measurement) -> None:
        """Measure a pair a round, each of the two first in turn."""
        sides = [(line.orch, ours), (line.other, theirs)]
        for _ in self.rounds:
            for samples, measure in sides:
                samples.append(measure())
            sides.reverse()
            pair = (_figure(samples[-1], line.unit) for samples in (line.orch, line.other))
            say(f"{line.name}: {' with orch, '.join(pair)} by {line.against}: {line.ratios[-1]:.3f}")

    def folder(self) -> Path:
        """Return a new folder for the files of one run."""
        return Path(tempfile.mkdtemp(prefix="out-", dir=self.directory))

    def orch(self, *words: str | Path) -> str:
        """Run a command of orch to its end, and return its stdout."""
        done = subprocess.run([ORCH, *words], env=self.env, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    @contextmanager
    def running(self, workers: int, *command: str) -> Iterator[str]:
        """The id of a run in the background."""
        run = self.orch("up", "-d", "--wait", "ready", "--workers", str(workers), "--", *command)
        try:
            yield run
        finally:
            self.orch("down", "--force", run)

    def timed(self, argv: Sequence[str | Path], out: int | IO[bytes] = subprocess.DEVNULL) -> float:
        """Seconds that a command took."""
        began = time.perf_counter()
        subprocess.run(argv, stdout=out, stderr=subprocess.DEVNULL, env=self.env, check=True)
        return time.perf_counter() - began

    def clear(self) -> None:
        """Remove the runs so far."""
        shutil.rmtree(self.state, ignore_errors=True)

    def report(self, name: str) -> None:
        """Print the table, and write everything to the file of --json."""
        lines, about = [line for line in self.lines if line.orch], _machine()
        print(f"{name}: {about['date']}, {about['cores']} cores ({about['cpu']}), load {about['load']}")
        print(f"  {about['versions']}")
        width = max(len(line.name) for line in lines)
        print(f"  {'':<{width}}  {'orch':>11}  {'other':>11}  {'ratio':>7}  {'spread':>16}  {'aim':>8}")
        for line in lines:
            print(f"  {line.name:<{width}}  {line.row}")
        if self.given.json is not None:
            measured = [asdict(line) | {"figure": line.figure, "reached": line.is_reached} for line in lines]
            document = {"bench": name, "machine": about, "measured": measured}
            self.given.json.write_text(json.dumps(document, indent=1))


@contextmanager
def bench(
    name: str, description: str | None, rounds: int, directory: Path | None = None, **more: int | str
) -> Iterator[Bench]:
    """Measure within the block, then print the table. `more`: further options and their defaults.

    Resets the signals that a shell ignores in the background, and limits what the measurement's processes write.
    SIGINT and SIGTERM end these processes before the measurement removes its files.
    """
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    for option, default in {"rounds": rounds, **more}.items():
        words = {"type": type(default), "default": default, "help": f"default: {default}"}
        parser.add_argument(f"--{option.replace('_', '-')}", **words)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the samples as JSON, too")
    parser.add_argument("--directory", type=Path, default=directory, help="the runs' files are in it")
    given = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    least = min({soft, LARGEST_FILE_BYTES} - {resource.RLIM_INFINITY})
    resource.setrlimit(resource.RLIMIT_FSIZE, (least, hard))
    with tempfile.TemporaryDirectory(prefix="orch-bench-", dir=given.directory) as made:
        measured = Bench(given, Path(made))
        yield measured
    measured.report(name)


def _end(number: int, _: object) -> NoReturn:
    started = psutil.Process().children(recursive=True)
    for process in started:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(started, timeout=_PATIENCE_S)
    raise SystemExit(128 + number)


def say(text: str) -> None:
    """Print a text about the progress of the measurement."""
    print(text, file=sys.stderr, flush=True)


def _figure(value: float, unit: str = "") -> str:
    number = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{number} {unit}".strip()


def _machine() -> dict[str, object]:
    versions = [f"Python {platform.python_version()}"]
    for name in MEASURED_PACKAGES:
        with suppress(PackageNotFoundError):
            versions.append(f"{name} {version(name)}")
    cpu = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu[1] if cpu else platform.machine(),
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "kernel": platform.release(),
        "versions": ", ".join(versions),
    }
