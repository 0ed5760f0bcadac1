"""Runs the cases in one process, under MirroredStrategy and on workers, and compares their values."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from forks import ROOT, ForkedProcess, ForkServer

ORCH = Path(sys.executable).with_name("orch")
PROGRAM = Path(__file__).with_name("cases") / "program.py"
# A difference up to this one is the rounding of sums in another order.
ROUNDING = 1e-4
# All cases take 25 minutes of CPU time, and a busy machine may give them a tenth of a core.
LONGEST_RUN_S = 6 * 3600.0
_SMALLEST = 1e-3

Values = dict[str, Any]
Process = subprocess.Popen[bytes] | ForkedProcess


# -- the processes


@dataclass(frozen=True)
class Outcome:
    """The files that processes have written into `directory`, and the output and exit code of each."""

    directory: Path
    outputs: list[str]
    codes: list[int]

    def of(self, case: str) -> list[Values]:
        """Return the values of a case, by process. AssertionError if one of them has none."""
        found = [values_of(self.directory, case, rank) for rank in range(len(self.codes))]
        errors = [f"{case}: {one}" for one in found if isinstance(one, str)]
        assert not errors, "\n".join([*errors, str(self.codes), *self.outputs])
        return [one for one in found if not isinstance(one, str)]

    def of_all(self, case: str) -> Values:
        """Return the values of a case, which are equal in all processes."""
        first, *others = self.of(case)
        for other in others:
            assert other.keys() == first.keys()
            for name, value in first.items():
                np.testing.assert_array_equal(value, other[name], err_msg=f"{case}: {name}")
        return first


def run_cases(
    directory: Path,
    workers: int,
    cases: Sequence[str],
    *,
    kind: str = "",
    fixed: bool = True,
    environment: Mapping[str, str] | None = None,
    forks: ForkServer | None = None,
) -> Outcome:
    """Run cases one after the other, in one cluster of workers or, with one worker, in one process.

    `kind`: "mirrored" for one process with as many replicas. With `fixed` the Keras fixes are armed as in a task.
    `forks` starts the workers without the import of TensorFlow.
    """
    kind = kind or ("workers" if workers > 1 else "plain")
    directory.mkdir(parents=True, exist_ok=True)
    words = [str(PROGRAM), kind, str(workers), str(directory), ";".join(cases)]
    logs = [directory / f"log-{rank}" for rank in range(workers if kind == "workers" else 1)]
    # TensorFlow leaves generated code there if it is killed.
    temporary = directory / "temporary"
    temporary.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        # Bound with SO_REUSEADDR and not listening: only TensorFlow's server can take these ports.
        holders = [stack.enter_context(socket.socket()) for _ in logs]
        for holder in holders:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("", 0))
        started: list[Process] = []
        for rank, log in enumerate(logs):
            env = {
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "CASE_FIXED": str(int(fixed)),
                "TF_CPP_MIN_LOG_LEVEL": "2",
                **(environment or {}),
                "TMPDIR": str(temporary),
            }
            if kind == "workers":
                addresses = [f"127.0.0.1:{holder.getsockname()[1]}" for holder in holders]
                task = {"type": "worker", "index": rank}
                env["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
            with log.open("ab") as out:
                if forks is not None:
                    process: Process = forks.fork(words, out, out, env, directory)
                else:
                    argv, none = [sys.executable, *words], subprocess.DEVNULL
                    process = subprocess.Popen(
                        argv,
                        stdin=none,
                        stdout=out,
                        stderr=out,
                        env=env,
                        cwd=directory,
                        start_new_session=True,
                    )
            stack.callback(_end, process)
            started.append(process)
        codes = [process.wait(LONGEST_RUN_S) for process in started]
    return Outcome(directory, [log.read_text(errors="replace") for log in logs], codes)


def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


def _run_in_orch(place: Path, count: int, which: str, environ: dict[str, str]) -> None:
    """Run the cases on workers. A case that fails ends the run, and another run continues after it."""
    place.mkdir(parents=True)
    log, begun = place / "log-0", place / "begun-0"
    before: list[str] = []
    while True:
        words = [str(PROGRAM), "workers", str(count), str(place), which, ";".join(before)]
        with log.open("ab") as output:
            code = subprocess.run(
                [str(ORCH), "up", "-q", "--workers", str(count), "--", *words],
                cwd=place,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=LONGEST_RUN_S,
                check=False,
            ).returncode
        if code == 0:
            return
        failed = list(dict.fromkeys(begun.read_text().splitlines())) if begun.exists() else []
        if len(failed) == len(before):
            raise RuntimeError(f"the workers failed:\n{log.read_text(errors='replace')[-4000:]}")
        before = failed


# -- the comparison


@dataclass(frozen=True)
class Figures:
    """A case on `workers` workers: its relative differences to the references, or the error of each."""

    name: str
    topic: str
    differs: str
    within: float
    workers: int
    to_one: float | str
    to_mirrored: float | str
    between_workers: float | str

    @property
    def equals_one(self) -> bool:
        return is_rounding(self.to_one)

    @property
    def is_explained(self) -> bool:
        """Whether the workers have equal values, and a reason if and only if these are not those of one process."""
        is_known = self.equals_one != bool(self.differs) and number(self.to_one) <= self.within
        return self.between_workers == 0.0 and is_known


def measure(
    directory: Path,
    which: str,
    environ: dict[str, str],
    *,
    workers: Sequence[int] = (2, 3),
    mirrored: bool = True,
) -> Iterator[Figures]:
    """Run the cases `which` (all, quick, or names joined by ";") under orch, and yield their figures.
    Without `mirrored` they are compared with one process only."""
    # The processes share the cores.
    environ = {**environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1"}
    kinds = [("plain", 1), *(("mirrored", count) for count in workers if mirrored)]
    with ThreadPoolExecutor() as pool:
        references = [
            pool.submit(
                run_cases, directory / f"{kind}-{count}", count, [which], kind=kind, environment=environ
            )
            for kind, count in kinds
        ]
        for count in workers:
            _run_in_orch(directory / f"workers-{count}", count, which, environ)
    for reference in (future.result() for future in references):
        if reference.codes != [0]:
            raise RuntimeError(f"{reference.directory.name} failed:\n{reference.outputs[0][-4000:]}")
    for case in json.loads((directory / "plain-1" / "cases.json").read_text()):
        for count in workers:
            if count == 2 or case["three"]:
                yield _compare(directory, case, count)


def file_name(case: str) -> str:
    return re.sub(r"\W+", "-", case)


def _compare(directory: Path, case: dict[str, Any], count: int) -> Figures:
    name = case["name"]
    workers = [values_of(directory / f"workers-{count}", name, rank) for rank in range(count)]
    return Figures(
        name,
        case["topic"],
        case["differs"],
        case["within"],
        count,
        difference(workers[0], values_of(directory / "plain-1", name)),
        difference(workers[0], values_of(directory / f"mirrored-{count}", name)),
        max((difference(other, workers[0]) for other in workers[1:]), key=number),
    )


def values_of(place: Path, case: str, rank: int = 0) -> Values | str:
    """Return the values of a case, or its error."""
    file = place / f"{file_name(case)}-{rank}.npz"
    with contextlib.suppress(FileNotFoundError), np.load(file) as values:
        return dict(values)
    with contextlib.suppress(FileNotFoundError):
        return file.with_suffix(".txt").read_text()
    return "did not end"


def difference(values: Values | str, reference: Values | str) -> float | str:
    """Return the largest difference of any array, relative to the largest number of the array in the reference."""
    for side in (values, reference):
        if isinstance(side, str):
            return side
    if values.keys() != reference.keys():
        return f"other values: {sorted(values.keys() ^ reference.keys())}"
    return max(_of_arrays(values[name], reference[name]) for name in reference)


def _of_arrays(one: Any, other: Any) -> float:
    if one.shape != other.shape or not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return float("inf")
    one, other = one[np.isfinite(one)].astype(np.float64), other[np.isfinite(other)].astype(np.float64)
    if not one.size:
        return 0.0
    return float(np.max(np.abs(one - other)) / max(np.max(np.abs(other)), _SMALLEST))


def is_rounding(figure: float | str) -> bool:
    return number(figure) <= ROUNDING


def number(figure: float | str) -> float:
    return float("inf") if isinstance(figure, str) else figure


def differing_values(directory: Path, figures: Figures) -> list[str]:
    """Return a line for each array that differs from a reference by more than the rounding."""
    values = values_of(directory / f"workers-{figures.workers}", figures.name)
    lines = []
    for place in ("plain-1", f"mirrored-{figures.workers}"):
        if not (directory / place).exists():
            continue
        reference = values_of(directory / place, figures.name)
        error = difference(values, reference)
        if isinstance(error, str):
            lines.append(f"    {place}: {error}")
        elif not isinstance(values, str) and not isinstance(reference, str):
            found = {key: _of_arrays(values[key], reference[key]) for key in reference}
            lines += [f"    {place}: {key}: {size:.0e}" for key, size in found.items() if size > ROUNDING]
    return lines
