"""Runs jobs in a pool of processes, one after another in each, each job in a new directory."""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from soak_shared_memory import SHARED_MEMORY, take_own

_ORCHS_VARIABLES = ("ORCH_", "TF_CONFIG", "TF_GRPC_REUSE_PORT", "PORTSERVER_ADDRESS")


@dataclass(frozen=True)
class Job:
    """A cell by its name, or the draw `number` of a seed; `name` is shown to the user."""

    name: str
    cell: str = ""
    seed: int = 0
    number: int = 0


@dataclass(frozen=True)
class Finding:
    """A failure of a job; `kind` as in tests/e2e/local/faults/cell_failure.py."""

    name: str
    kind: str
    text: str
    directory: Path


@dataclass(frozen=True)
class Totals:
    """`not_tried`: what this machine does not let us try, and why. `shared_memory_seen`: whether what is left in
    there could be told from what other programs have. CPU seconds but for what a killed client leaves to init."""

    cpu_s: float
    not_tried: tuple[str, ...]
    shared_memory_seen: bool


@dataclass(frozen=True)
class _Done:
    finding: Finding | None
    not_tried: str | None
    cpu_s: float
    shared_memory_seen: bool


def run_all(
    jobs: Sequence[Job], at_once: int, root: Path, tell: Callable[[int, Finding | None], None]
) -> Totals:
    """Run the jobs; `tell` is called after each with how many are done."""
    context = multiprocessing.get_context("spawn")
    results: list[_Done] = []
    waiting = list(enumerate(jobs))
    with ProcessPoolExecutor(at_once, mp_context=context, initializer=_prepare) as pool:
        running: set[Future[_Done]] = set()
        while waiting or running:
            while waiting and len(running) < at_once:
                number, job = waiting.pop(0)
                running.add(pool.submit(_run, job, root / f"{number:05}"))
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                results.append(future.result())
                tell(len(results), results[-1].finding)
    return Totals(
        sum(result.cpu_s for result in results),
        tuple(result.not_tried for result in results if result.not_tried is not None),
        all(result.shared_memory_seen for result in results),
    )


_has_own_shared_memory = False


def _prepare() -> None:
    global _has_own_shared_memory
    _has_own_shared_memory = take_own()
    for name in list(os.environ):
        if name.startswith(_ORCHS_VARIABLES):
            del os.environ[name]


def _run(job: Job, directory: Path) -> _Done:
    """Run a job in `directory`, which is removed if nothing was wrong."""
    from cell_failure import CellFailure, Kind, NotAvailable

    cpu_s, before = _cpu_s(), _descriptors()
    temporary = directory / "tmp"
    temporary.mkdir(parents=True)
    os.environ |= {"XDG_STATE_HOME": str(directory / "state"), "TMPDIR": str(temporary)}
    finding: Finding | None = None
    not_tried: str | None = None
    try:
        _break(job, directory)
        gc.collect()
        left = _descriptors() - before
        if left:
            raise CellFailure(Kind.DESCRIPTOR, left)
        if _has_own_shared_memory and (names := [*Path(SHARED_MEMORY).iterdir()]):
            raise CellFailure(Kind.SHARED_MEMORY, names)
    except NotAvailable as reason:
        not_tried = f"{job.name}: {reason}"
        shutil.rmtree(directory)
    except Exception as error:
        kind = error.kind if isinstance(error, CellFailure) else _kind_of(error)
        text = "".join(traceback.format_exception(error)).strip()
        (directory / "wrong.txt").write_text(f"{job}\n\n{text}\n")
        finding = Finding(job.name, kind, str(error)[:4000], directory)
    else:
        shutil.rmtree(directory)
    return _Done(finding, not_tried, _cpu_s() - cpu_s, _has_own_shared_memory)


def _break(job: Job, directory: Path) -> None:
    from cell_run import run_cell
    from matrix import BY_NAME
    from random_faults import RandomRun, run_random
    from soak_draws import draw

    what = BY_NAME[job.cell] if job.cell else draw(job.seed, job.number)
    if isinstance(what, RandomRun):
        run_random(what, directory)
    else:
        run_cell(what, directory)


def _kind_of(error: Exception) -> str:
    from cell_failure import Kind

    return Kind.HANG if "still not so" in str(error) or isinstance(error, TimeoutError) else Kind.OTHER


def _descriptors() -> set[tuple[str, str]]:
    """Return the open descriptors of this process, without those of the pool."""
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found.add((fd.name, str(fd.readlink())))
        except OSError:
            continue  # the listing's own
    return found


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def machine_load() -> str:
    return f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}"


def today() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
