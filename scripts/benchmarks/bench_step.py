"""Measures steady steps and the end of `fit`: orch beside a shell loop, Keras 3 beside tf_keras.

    scripts/bench step [--rounds 5] [--steps 400] [--json FILE]

A step's time is the median of the steps after the tenth. By hand, `fit` runs on several workers only with tf_keras
(TF_USE_LEGACY_KERAS=1): the released Keras 3 fails.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from bench_cluster import LARGE, SMALL, Clusters, Script, Steps
from bench_pairs import Compared, options, report, say

WARM_STEPS = 10
LEGACY = (("TF_USE_LEGACY_KERAS", "1"),)
SIZES = {"8 k parameters": (SMALL, 0.45), "2.8 M parameters": (LARGE, 0.95)}
RETURN_AIM_S = 0.3


def main() -> None:
    parser = options("Measures steady steps.", rounds=5)
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    lines: list[Compared] = []
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as directory:
        clusters = Clusters(Path(directory))
        for workers in (2, 4):
            line = Compared(f"custom loop, {workers} workers", "ms", "shell loop", 1.02)
            script = Script("custom_loop.py", workers, arguments.steps)
            lines.append(line)
            for round_ in range(arguments.rounds):
                for by_orch in _turns(round_):
                    samples = line.orch if by_orch else line.other
                    samples.append(steady_ms(clusters.trained(script, by_orch=by_orch)))
                say(f"{line.name}: {line.ratios[-1]:.3f}")
        returned = Compared("fit's return after its last step, 2 workers", "s", "", RETURN_AIM_S)
        by_hand = Compared("the same by hand (tf_keras)", "s", "")
        for size, (widths, aim) in SIZES.items():
            line = Compared(f"fit, 2 workers, {size}", "ms", "tf_keras by shell loop", aim)
            lines.append(line)
            for round_ in range(arguments.rounds):
                for by_orch in _turns(round_):
                    env = () if by_orch else LEGACY
                    script = Script("keras_fit.py", 2, arguments.steps, widths, env)
                    steps = clusters.trained(script, by_orch=by_orch)
                    (line.orch if by_orch else line.other).append(steady_ms(steps))
                    (returned if by_orch else by_hand).orch.append(steps.fit_returned_after or 0.0)
                say(f"{line.name}: {line.ratios[-1]:.3f}")
        lines += [returned, by_hand]
    report("step", lines, arguments.json)


def steady_ms(steps: Steps) -> float:
    return statistics.median(steps.per_step[WARM_STEPS:]) * 1000


def _turns(round_: int) -> tuple[bool, bool]:
    """Return the order of the pair, which changes from round to round."""
    return (True, False) if round_ % 2 == 0 else (False, True)


if __name__ == "__main__":
    main()
