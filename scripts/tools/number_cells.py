"""Runs the cases of number_cases/ as one process, under MirroredStrategy and on workers, and compares their values."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ORCH = Path(sys.executable).with_name("orch")
PROGRAM = Path(__file__).with_name("number_cases") / "program.py"
# A difference up to this one is the rounding of sums in another order.
ROUNDING = 1e-4
# All cases take 25 minutes of CPU time, and a busy machine may give them a tenth of a core.
LONGEST_RUN_S = 6 * 3600.0
_SMALLEST = 1e-3

Values = dict[str, Any]


@dataclass(frozen=True)
class Figures:
    """A case on `workers` workers: its relative differences to the references, or the error of each."""

    name: str
    topic: str
    differs: str
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
        return self.between_workers == 0.0 and self.equals_one != bool(self.differs)


def measure(
    directory: Path,
    which: str,
    environ: dict[str, str],
    *,
    workers: Sequence[int] = (2, 3),
    mirrored: bool = True,
) -> Iterator[Figures]:
    """Run the cases `which` (all, quick, or names joined by ";") and yield their figures.
    Without `mirrored` they are compared with one process only."""
    # The processes share the cores.
    environ = {**environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1"}
    with contextlib.ExitStack() as stack:
        references = {"plain-1": _start(stack, directory, "plain", 1, which, environ)}
        for count in workers if mirrored else ():
            references[f"mirrored-{count}"] = _start(stack, directory, "mirrored", count, which, environ)
        for count in workers:
            _run_workers(directory, count, which, environ)
        for name, process in references.items():
            if process.wait(LONGEST_RUN_S):
                raise RuntimeError(f"{name} failed:\n{_log(directory / name)}")
    for case in json.loads((directory / "plain-1" / "cases.json").read_text()):
        for count in workers:
            if count == 2 or case["three"]:
                yield _compare(directory, case, count)


# -- the processes


def _start(
    stack: contextlib.ExitStack,
    directory: Path,
    kind: str,
    replicas: int,
    which: str,
    environ: dict[str, str],
) -> subprocess.Popen[bytes]:
    place = directory / f"{kind}-{replicas}"
    place.mkdir(parents=True)
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), kind, str(replicas), str(place), which],
            cwd=place,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _run_workers(directory: Path, count: int, which: str, environ: dict[str, str]) -> None:
    """Run the cases on workers. A case that fails ends the run, and another run continues after it."""
    place = directory / f"workers-{count}"
    place.mkdir(parents=True)
    begun: list[str] = []
    while True:
        words = [str(PROGRAM), "workers", str(count), str(place), which, ";".join(begun)]
        with (place / "log").open("ab") as log:
            code = subprocess.run(
                [str(ORCH), "up", "-q", "--workers", str(count), "--", *words],
                cwd=place,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=LONGEST_RUN_S,
                check=False,
            ).returncode
        if code == 0:
            return
        before = len(begun)
        begun = _begun(place)
        if len(begun) == before:
            raise RuntimeError(f"the workers failed:\n{_log(place)}")


def _begun(place: Path) -> list[str]:
    return list(dict.fromkeys((place / "begun-0").read_text().splitlines()))


def _log(place: Path) -> str:
    return (place / "log").read_text(errors="replace")[-4000:]


# -- the comparison


def file_name(case: str) -> str:
    return re.sub(r"\W+", "-", case)


def _compare(directory: Path, case: dict[str, Any], count: int) -> Figures:
    name = file_name(case["name"])
    workers = [_values(directory / f"workers-{count}", name, rank) for rank in range(count)]
    return Figures(
        case["name"],
        case["topic"],
        case["differs"],
        count,
        difference(workers[0], _values(directory / "plain-1", name)),
        difference(workers[0], _values(directory / f"mirrored-{count}", name)),
        max((difference(other, workers[0]) for other in workers[1:]), key=number),
    )


def _values(place: Path, name: str, rank: int = 0) -> Values | str:
    """Return the values of a case, or its error."""
    with contextlib.suppress(FileNotFoundError), np.load(place / f"{name}-{rank}.npz") as values:
        return dict(values)
    with contextlib.suppress(FileNotFoundError):
        return (place / f"{name}-{rank}.txt").read_text()
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
    name = file_name(figures.name)
    values = _values(directory / f"workers-{figures.workers}", name)
    lines = []
    for place in ("plain-1", f"mirrored-{figures.workers}"):
        if not (directory / place).exists():
            continue
        reference = _values(directory / place, name)
        error = difference(values, reference)
        if isinstance(error, str):
            lines.append(f"    {place}: {error}")
        elif not isinstance(values, str) and not isinstance(reference, str):
            found = {key: _of_arrays(values[key], reference[key]) for key in reference}
            lines += [f"    {place}: {key}: {size:.0e}" for key, size in found.items() if size > ROUNDING]
    return lines
