"""Runs the soak: random faults, the whole matrix many times, or one session of many runs; or prints the matrix.

    scripts/tools/soak [runs] [--runs 500] [--at-once 8] [--seed S] [--only N]      random faults
    scripts/tools/soak matrix [--times 20] [--at-once 4] [--only TEXT]              every light cell, this many times
    scripts/tools/soak session [--runs 200]                                         memory of a long session
    scripts/tools/soak table                                                        the table for docs/reliability.md

Exit code 1 if anything was wrong. The directory of a wrong run is kept; a seed and a number name a run.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(_TESTS / "e2e/local/faults"), str(_TESTS / "support")]

import soak_session  # noqa: E402
from cells import Way  # noqa: E402
from matrix import MATRIX, table  # noqa: E402
from soak_draws import draw  # noqa: E402
from soak_pool import Finding, Job, run_all  # noqa: E402
from soak_report import report  # noqa: E402
from terminal_signals import restore_terminal_signals  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", default="runs", choices=("runs", "matrix", "session", "table"))
    parser.add_argument("--runs", type=int, help="how many (500; of a session 200)")
    parser.add_argument("--times", type=int, default=20, help="how often each cell")
    parser.add_argument("--at-once", type=int, help="at most so many at a time (8; of the matrix 4)")
    parser.add_argument("--seed", type=int, default=None, help="draws the same runs again")
    parser.add_argument("--only", help="this number of the draw alone, or cells with this text")
    arguments = parser.parse_args()
    restore_terminal_signals()
    # Lets those end that are running, and with them their processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    match arguments.what:
        case "table":
            print(table())
            return 0
        case "session":
            return _session(arguments.runs or 200)
        case "matrix":
            light = [cell for cell in MATRIX if cell.way is not Way.TENSORFLOW]
            wanted = [cell for cell in light if (arguments.only or "") in cell.name]
            jobs = [
                Job(f"{cell.name} #{n + 1}", cell=cell.name)
                for n in range(arguments.times)
                for cell in wanted
            ]
            return _soak(jobs, arguments.at_once or 4, f"{len(wanted)} cells, {arguments.times} times")
        case _:
            seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
            many = arguments.runs or 500
            jobs = [
                Job(f"{number}: {draw(seed, number).name}", seed=seed, number=number)
                for number in range(many)
            ]
            if arguments.only is not None:
                jobs = [jobs[int(arguments.only)]]
            code = _soak(jobs, arguments.at_once or 8, f"{len(jobs)} runs, --seed {seed}")
            return code if arguments.only is not None else _session(200) or code


def _soak(jobs: Sequence[Job], at_once: int, title: str) -> int:
    root = Path(tempfile.mkdtemp(prefix="orch-soak-"))
    began = time.monotonic()
    findings: list[Finding] = []
    totals = run_all(jobs, at_once, root, _teller(findings, len(jobs)))
    report(title, at_once, len(jobs), findings, time.monotonic() - began, totals, root)
    if not findings:
        shutil.rmtree(root)
    return 1 if findings else 0


def _teller(findings: list[Finding], many: int) -> Callable[[int, Finding | None], None]:
    """Says how far it is, and at once what was found."""

    def tell(done: int, finding: Finding | None) -> None:
        if finding is not None:
            findings.append(finding)
            print(f"\nWRONG {finding.name}\n  {finding.text}\n  {finding.directory}", file=sys.stderr)
        if done % 20 == 0 or done == many:
            print(f"\r{done} of {many}, {len(findings)} wrong ", end="", file=sys.stderr, flush=True)

    return tell


def _session(runs: int) -> int:
    with tempfile.TemporaryDirectory(prefix="orch-soak-") as directory:
        return soak_session.measure(runs, Path(directory))


if __name__ == "__main__":
    sys.exit(main())
