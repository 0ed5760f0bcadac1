"""Measures whether fewer threads a task help: a small custom loop with variables set, beside TensorFlow's defaults.

    scripts/bench threads [--rounds 5] [--steps 150] [--workers 2,4] [--only "intra 1"] [--json FILE]

Everything is started by hand: the variables are the only difference. In the table `orch` is the cluster with them,
`other` the one as it is. Memory (PSS) and threads are summed over the workers once each has taken a step.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial

import psutil
from bench_cluster import PATIENCE_S, Clusters, Script, pss, read_steps, wait_for_first_steps
from bench_pairs import bench, say

from orchestrator.core.job.cpu_budget import INTER_OP, INTRA_OP, OTHER_POOLS, threads_each
from orchestrator.host.cores import usable_cores

# TensorFlow's own choice with many cores and a quota of few: not a candidate, but the cost of setting nothing.
MANY_CORES = 64
# Largest ratio of step times that can be noise. A slower candidate does not become the default.
NO_SLOWER = 1.02
FIGURES = {"step": "ms", "first step": "s", "memory": "MB", "threads": ""}
Variables = tuple[tuple[str, str], ...]


def candidates(workers: int) -> dict[str, Variables]:
    """Return the candidates for the default by the names in the table."""
    each = str(threads_each(usable_cores().usable, workers))
    intra = ((INTRA_OP, each),)
    inter = ((INTER_OP, str(workers + 1)),)
    others = tuple((name, each) for name in OTHER_POOLS)
    return {
        f"intra {each}": intra,
        f"inter {workers + 1}": inter,
        f"intra {each}, inter {workers + 1}": (*intra, *inter),
        f"all {each}, inter {workers + 1}": (*intra, *inter, *others),
        f"as on {MANY_CORES} cores": ((INTRA_OP, str(MANY_CORES)), (INTER_OP, str(MANY_CORES))),
    }


def measure(clusters: Clusters, script: Script) -> list[float]:
    """Return the FIGURES of one cluster, in their units."""
    out = clusters.bench.folder()
    began = time.monotonic()
    with clusters.by_hand(script, out) as process:
        wait_for_first_steps(process, out, script.workers)
        workers = psutil.Process(process.pid).children(recursive=True)
        memory, threads = sum(map(pss, workers)), 0.0
        for worker in workers:
            with contextlib.suppress(psutil.Error):
                threads += worker.num_threads()
        process.wait(PATIENCE_S)
        steps = read_steps(out, script.workers, began)
    return [steps.steady_ms, steps.first, memory / 1e6, threads]


def main() -> None:
    with bench("threads", __doc__, rounds=5, steps=150, workers="2,4", only="") as measured:
        given, clusters = measured.given, Clusters(measured)
        for workers in map(int, given.workers.split(",")):
            script = partial(Script, "custom_loop.py", workers, given.steps)
            those = {name: env for name, env in candidates(workers).items() if given.only in ("", name)}
            if not those:
                raise SystemExit(f'--only: "{given.only}" is not one of: {"; ".join(candidates(workers))}')
            table = {
                name: [
                    measured.line(
                        f"{workers} workers, {name}: {figure}",
                        unit,
                        NO_SLOWER if unit in ("ms", "s") and not name.startswith("as on") else None,
                        "TensorFlow's defaults",
                    )
                    for figure, unit in FIGURES.items()
                ]
                for name in those
            }
            for round_ in measured.rounds:
                for name, env in those.items():
                    for is_set in (True, False) if round_ % 2 == 0 else (False, True):
                        figures = measure(clusters, script(env=env if is_set else ()))
                        for line, figure in zip(table[name], figures, strict=True):
                            (line.orch if is_set else line.other).append(figure)
                    for line in table[name]:
                        say(f"{line.name}: {line.ratios[-1]:.3f}")


if __name__ == "__main__":
    main()
