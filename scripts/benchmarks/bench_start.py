"""Measures the time to a cluster's first training step, and its memory then: orch beside a shell loop.

    scripts/bench start [--rounds 5] [--workers 4,8] [--json FILE]

The script is a custom loop, since `fit` of Keras 3 does not work by hand. The kept cluster is the second one of a
Python process that keeps its supervisor and preloader (orchestrator.Session); so is the call of a function. A warm
start is the second `orch up --warm` in a directory; a save is one under `orch up --watch`, after a run has ended.
"""

from __future__ import annotations

from functools import partial

from bench_cluster import Clusters, Script
from bench_pairs import bench

STEPS = 20
AIMS = {4: 0.50, 8: 0.45}
# The size of all but the first lines.
WORKERS = 4
MEMORY_AIM = 0.80


def main() -> None:
    with bench("start", __doc__, rounds=5, workers="4,8") as measured:
        clusters = Clusters(measured)
        sizes = [int(size) for size in measured.given.workers.split(",")]
        script = Script("custom_loop.py", WORKERS, STEPS)
        session = partial(clusters.second_of_session, script)
        ways = [
            (", kept preloader", script, partial(session, "kept.py"), 0.35),
            (", second call of a function", script, partial(session, "kept_function.py"), 0.25),
            (", orch up --warm", script, partial(clusters.warm, script), 0.25),
            (", save under --watch", script, partial(clusters.saved, script), 0.30),
        ]
        scripts = [Script("custom_loop.py", size, STEPS) for size in sizes]
        cold = [
            ("", each, partial(clusters.first_step, each, True), AIMS.get(each.workers)) for each in scripts
        ]
        for name, each, measure, aim in cold + (ways if WORKERS in sizes else []):
            line = measured.line(f"first step, {each.workers} workers{name}", "s", aim, "shell loop")
            measured.compare(line, measure, partial(clusters.first_step, each, False))
        if WORKERS in sizes:
            memory = partial(clusters.megabytes, Script("custom_loop.py", WORKERS, 10 * STEPS))
            line = measured.line(f"memory (PSS) after it, {WORKERS} workers", "MB", MEMORY_AIM, "shell loop")
            measured.compare(line, partial(memory, True), partial(memory, False))


if __name__ == "__main__":
    main()
