"""Measures the time to a cluster's first training step, and its memory then: orch beside a shell loop.

    scripts/bench start [--rounds 5] [--workers 4,8] [--json FILE]

The script is a custom loop, since `fit` of Keras 3 does not work by hand. The kept cluster is the second one of a
Python process that keeps its supervisor and preloader (orchestrator.Session); so is the call of a function. A warm
start is the second `orch up --warm` in a directory; a save is one under `orch up --watch`, after a run has ended.
"""

from __future__ import annotations

from functools import partial

from bench_cluster import Clusters, Script
from bench_pairs import bench, pair

STEPS = 20
AIMS = {4: 0.50, 8: 0.45}
# The size of all but the first lines.
WORKERS = 4
MEMORY_AIM = 0.80


def main() -> None:
    with bench("start", __doc__, rounds=5, workers="4,8") as measured:
        clusters = Clusters(measured)
        sizes = [int(size) for size in measured.given.workers.split(",")]
        scripts = {size: Script("custom_loop.py", size, STEPS) for size in {*sizes, WORKERS}}
        ways = [
            ("", size, partial(clusters.first_step, scripts[size], True), AIMS.get(size)) for size in sizes
        ]
        if WORKERS in sizes:
            script = scripts[WORKERS]
            session = partial(clusters.second_of_session, script)
            ways += [
                (", kept preloader", WORKERS, partial(session, "kept.py"), 0.35),
                (", second call of a function", WORKERS, partial(session, "kept_function.py"), 0.25),
                (", orch up --warm", WORKERS, partial(clusters.warm, script), 0.25),
                (", save under --watch", WORKERS, partial(clusters.saved, script), 0.30),
            ]
        for name, size, measure, aim in ways:
            first = measured.line(f"first step, {size} workers{name}", "s", aim, "shell loop")
            for round_ in measured.rounds:
                pair(first, measure, partial(clusters.first_step, scripts[size], False), round_)
        if WORKERS not in sizes:
            return
        longer = Script("custom_loop.py", WORKERS, 10 * STEPS)
        memory = measured.line(f"memory (PSS) after it, {WORKERS} workers", "MB", MEMORY_AIM, "shell loop")
        for round_ in measured.rounds:
            pair(memory, *(partial(clusters.megabytes, longer, by_orch) for by_orch in (True, False)), round_)


if __name__ == "__main__":
    main()
