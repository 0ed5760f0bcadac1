"""Measures the time to a cluster's first training step, and its memory then: orch beside a shell loop.

    scripts/bench start [--rounds 5] [--workers 4,8] [--json FILE]

The script is a custom loop, since `fit` of Keras 3 does not work by hand. The kept cluster is the second one of a
Python process that keeps its supervisor and preloader (orchestrator.Session); so is the call of a function. A warm
start is the second `orch up --warm` in a directory; a save is one under `orch up --watch`, after a run has ended.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from bench_cluster import Clusters, Script
from bench_pairs import Compared, options, pair, report

STEPS = 20
AIMS = {4: 0.50, 8: 0.45}
KEPT_WORKERS = 4
# The second order of a session: what it is, the script that gives it, and the aim.
KEPT = (("kept preloader", "kept.py", 0.35), ("second call of a function", "kept_function.py", 0.25))
WARM_AIM, SAVED_AIM = 0.25, 0.30
MEMORY_WORKERS, MEMORY_AIM = 4, 0.80


def first_step(clusters: Clusters, script: Script, by_orch: bool) -> float:
    return clusters.trained(script, by_orch=by_orch).first


def megabytes(clusters: Clusters, script: Script, by_orch: bool) -> float:
    return clusters.memory(script, by_orch=by_orch)[0] / 1e6


def main() -> None:
    parser = options("Measures the start of a cluster.", rounds=5)
    parser.add_argument("--workers", default="4,8", help="cluster sizes (default 4,8)")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.workers.split(",")]
    lines: list[Compared] = []
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as directory:
        clusters = Clusters(Path(directory))
        for workers in sizes:
            script = Script("custom_loop.py", workers, STEPS)
            first = Compared(f"first step, {workers} workers", "s", "shell loop", AIMS.get(workers))
            lines.append(first)
            for round_ in range(arguments.rounds):
                pair(
                    first,
                    partial(first_step, clusters, script, True),
                    partial(first_step, clusters, script, False),
                    round_,
                )
        if KEPT_WORKERS in sizes:
            script = Script("custom_loop.py", KEPT_WORKERS, STEPS)
            ways = [
                (name, partial(clusters.second_of_session, script, orders), aim) for name, orders, aim in KEPT
            ]
            ways.append(("orch up --warm", partial(clusters.warm, script), WARM_AIM))
            ways.append(("save under --watch", partial(clusters.saved, script), SAVED_AIM))
            for name, measure, aim in ways:
                kept = Compared(f"first step, {KEPT_WORKERS} workers, {name}", "s", "shell loop", aim)
                lines.append(kept)
                for round_ in range(arguments.rounds):
                    pair(kept, measure, partial(first_step, clusters, script, False), round_)
        if MEMORY_WORKERS in sizes:
            script = Script("custom_loop.py", MEMORY_WORKERS, STEPS * 10)
            memory = Compared(
                f"memory (PSS) after it, {MEMORY_WORKERS} workers", "MB", "shell loop", MEMORY_AIM
            )
            lines.append(memory)
            for round_ in range(arguments.rounds):
                pair(
                    memory,
                    partial(megabytes, clusters, script, True),
                    partial(megabytes, clusters, script, False),
                    round_,
                )
    report("start", lines, arguments.json)


if __name__ == "__main__":
    main()
