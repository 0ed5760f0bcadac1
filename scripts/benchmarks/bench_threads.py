"""Measures whether fewer threads a task help: a small custom loop with variables set, beside TensorFlow's defaults.

    scripts/bench threads [--rounds 5] [--steps 150] [--workers 2,4] [--only "intra 1"] [--json FILE]

Everything is started by hand: the variables are the only difference. In the table `orch` is the cluster with them,
`other` the one as it is. Memory (PSS) and threads are summed over the workers once each has taken a step.
"""

from __future__ import annotations

from bench_cluster import Clusters, Script, pss_mb
from bench_pairs import Compared, bench, say

from orchestrator.core.job.cpu_budget import INTER_OP, INTRA_OP, OTHER_POOLS, threads_each
from orchestrator.host.cores import usable_cores

# TensorFlow's own choice with many cores and a quota of few: not a candidate, but the cost of setting nothing.
MANY_CORES = 64
# Largest ratio of step times that can be noise. A slower candidate does not become the default.
NO_SLOWER = 1.02
FIGURES = {"step": "ms", "first step": "s", "memory": "MB", "threads": ""}


def candidates(workers: int) -> dict[str, dict[str, str]]:
    """Return the candidates for the default by the names in the table."""
    each = str(threads_each(usable_cores().usable, workers))
    intra, inter = {INTRA_OP: each}, {INTER_OP: str(workers + 1)}
    return {
        f"intra {each}": intra,
        f"inter {workers + 1}": inter,
        f"intra {each}, inter {workers + 1}": intra | inter,
        f"all {each}, inter {workers + 1}": intra | inter | dict.fromkeys(OTHER_POOLS, each),
        f"as on {MANY_CORES} cores": dict.fromkeys((INTRA_OP, INTER_OP), str(MANY_CORES)),
    }


def measure(clusters: Clusters, script: Script) -> list[float]:
    """Return the FIGURES of one cluster, in their units."""
    with clusters.start(script, by_orch=False) as cluster:
        workers = cluster.below()
        memory, threads = pss_mb(workers), sum(worker.num_threads() for worker in workers)
        steps = cluster.finish()
    return [steps.steady_ms, steps.first - cluster.began, memory, threads]


def main() -> None:
    with bench("threads", __doc__, rounds=5, steps=150, workers="2,4", only="") as measured:
        given, clusters = measured.given, Clusters(measured)

        def line(name: str, figure: str, unit: str) -> Compared:
            aim = NO_SLOWER if unit in ("ms", "s") and "as on" not in name else None
            return measured.line(f"{name}: {figure}", unit, aim, "TensorFlow's defaults")

        for workers in map(int, given.workers.split(",")):
            chosen = {name: env for name, env in candidates(workers).items() if given.only in ("", name)}
            if not chosen:
                raise SystemExit(f'--only: "{given.only}" is not one of: {"; ".join(candidates(workers))}')
            for name, env in chosen.items():
                lines = [line(f"{workers} workers, {name}", *figure) for figure in FIGURES.items()]
                for round_ in measured.rounds:
                    for is_set in (True, False) if round_ % 2 == 0 else (False, True):
                        script = Script("custom_loop.py", workers, given.steps, env=env if is_set else {})
                        for each, figure in zip(lines, measure(clusters, script), strict=True):
                            (each.orch if is_set else each.other).append(figure)
                    for each in lines:
                        say(f"{each.name}: {each.ratios[-1]:.3f}")


if __name__ == "__main__":
    main()
