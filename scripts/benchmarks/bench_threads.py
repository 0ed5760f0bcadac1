"""Measures whether fewer threads a task help: a small custom loop with variables set, beside TensorFlow's defaults.

    scripts/bench threads [--rounds 5] [--steps 150] [--workers 2 4] [--only "intra 1"] [--json FILE]

Everything is started by hand: the variables are the only difference. In the table `orch` is the cluster with them,
`other` the one as it is. Memory (PSS) and threads are summed over the workers once each has taken a step.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from bench_cluster import PATIENCE_S, Clusters, Script, pss, read_steps, wait_for_first_steps
from bench_pairs import Compared, options, report, say

from orchestrator.core.job.cpu_budget import INTER_OP, INTRA_OP, OTHER_POOLS, threads_each
from orchestrator.host.cores import usable_cores

WARM_STEPS = 10
# TensorFlow's own choice with many cores and a quota of few: not a candidate, but the cost of setting nothing.
MANY_CORES = 64
# Largest ratio of step times that can be noise. A slower candidate does not become the default.
NO_SLOWER = 1.02
FIGURES = ("step", "first step", "memory", "threads")
Variables = tuple[tuple[str, str], ...]
UNITS = dict(zip(FIGURES, ("ms", "s", "MB", ""), strict=True))


@dataclass(frozen=True)
class Measured:
    """The figures of one cluster, in the order and units of FIGURES."""

    figures: tuple[float, float, float, float]


def candidates(workers: int, only: str | None) -> dict[str, Variables]:
    """Return the candidates for the default by the names in the table; with `only`, just that one."""
    each = str(threads_each(usable_cores().usable, workers))
    intra = ((INTRA_OP, each),)
    inter = ((INTER_OP, str(workers + 1)),)
    others = tuple((name, each) for name in OTHER_POOLS)
    known = {
        f"intra {each}": intra,
        f"inter {workers + 1}": inter,
        f"intra {each}, inter {workers + 1}": (*intra, *inter),
        f"all {each}, inter {workers + 1}": (*intra, *inter, *others),
        f"as on {MANY_CORES} cores": ((INTRA_OP, str(MANY_CORES)), (INTER_OP, str(MANY_CORES))),
    }
    if only is not None and only not in known:
        raise SystemExit(f'--only: "{only}" is not known; there are: {"; ".join(known)}')
    return known if only is None else {only: known[only]}


def main() -> None:
    parser = options("Measures thread settings against TensorFlow's defaults.", rounds=5)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--only", metavar="NAME", help="one candidate, by its name in the table")
    arguments = parser.parse_args()
    lines: list[Compared] = []
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as directory:
        clusters = Clusters(Path(directory))
        for workers in arguments.workers:
            those = candidates(workers, arguments.only)
            by_candidate = {name: _lines(name, workers) for name in those}
            lines += [line for four in by_candidate.values() for line in four]
            for round_ in range(arguments.rounds):
                for name, env in _turned(those, round_):
                    _pair(
                        clusters,
                        by_candidate[name],
                        workers,
                        arguments.steps,
                        env,
                        with_first=round_ % 2 == 0,
                    )
    report("threads", lines, arguments.json)


def _lines(name: str, workers: int) -> list[Compared]:
    aims = (None,) * 4 if name.startswith("as on") else (NO_SLOWER, NO_SLOWER, None, None)
    return [
        Compared(f"{workers} workers, {name}: {figure}", UNITS[figure], "TensorFlow's defaults", aim)
        for figure, aim in zip(FIGURES, aims, strict=True)
    ]


def _turned(those: dict[str, Variables], round_: int) -> list[tuple[str, Variables]]:
    """Another candidate is the first in each round."""
    names = list(those)
    start = round_ % len(names)
    return [(name, those[name]) for name in (*names[start:], *names[:start])]


def _pair(
    clusters: Clusters,
    lines: list[Compared],
    workers: int,
    steps: int,
    env: Variables,
    *,
    with_first: bool,
) -> None:
    for is_set in (True, False) if with_first else (False, True):
        measured = _measured(clusters, Script("custom_loop.py", workers, steps, env=env if is_set else ()))
        for line, figure in zip(lines, measured.figures, strict=True):
            (line.orch if is_set else line.other).append(figure)
    for line in lines:
        say(
            f"{line.name}: {line.orch[-1]:.4g} against {line.other[-1]:.4g} {line.unit}: {line.ratios[-1]:.3f}"
        )


def _measured(clusters: Clusters, script: Script) -> Measured:
    out = clusters.folder()
    began = time.monotonic()
    with clusters.by_hand(script, out) as process:
        wait_for_first_steps(process, out, script.workers)
        workers = psutil.Process(process.pid).children(recursive=True)
        memory, threads = sum(pss(worker) for worker in workers), sum(map(_threads, workers))
        process.wait(PATIENCE_S)
        steps = read_steps(out, script.workers, began)
    step_ms = statistics.median(steps.per_step[WARM_STEPS:]) * 1000
    return Measured((step_ms, steps.first, memory / 1e6, float(threads)))


def _threads(process: psutil.Process) -> int:
    try:
        return int(process.num_threads())
    except psutil.Error:
        return 0


if __name__ == "__main__":
    main()
