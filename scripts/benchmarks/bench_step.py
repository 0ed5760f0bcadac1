"""Measures steady steps and the end of `fit`: orch beside a shell loop, Keras 3 beside tf_keras.

    scripts/bench step [--rounds 5] [--steps 400] [--json FILE]

A step's time is the median of the steps after the tenth. By hand, `fit` runs on several workers only with tf_keras
(TF_USE_LEGACY_KERAS=1): the released Keras 3 fails.
"""

from __future__ import annotations

from functools import partial

from bench_cluster import LARGE, SMALL, Clusters, Script
from bench_pairs import bench, pair

LEGACY = (("TF_USE_LEGACY_KERAS", "1"),)
SIZES = {"8 k parameters": (SMALL, 0.45), "2.8 M parameters": (LARGE, 0.95)}
RETURN_AIM_S = 0.3


def main() -> None:
    with bench("step", __doc__, rounds=5, steps=400) as measured:
        clusters, steps = Clusters(measured), measured.given.steps

        def step_ms(script: Script, by_orch: bool, ends: list[float] | None = None) -> float:
            trained = clusters.trained(script, by_orch=by_orch)
            if ends is not None:
                ends.append(trained.fit_returned_after or 0.0)
            return trained.steady_ms

        for workers in (2, 4):
            line = measured.line(f"custom loop, {workers} workers", "ms", 1.02, "shell loop")
            script = Script("custom_loop.py", workers, steps)
            for round_ in measured.rounds:
                pair(line, partial(step_ms, script, True), partial(step_ms, script, False), round_)
        ours: list[float] = []
        theirs: list[float] = []
        for size, (widths, aim) in SIZES.items():
            line = measured.line(f"fit, 2 workers, {size}", "ms", aim, "tf_keras by shell loop")
            keras, legacy = (Script("keras_fit.py", 2, steps, widths, env) for env in ((), LEGACY))
            for round_ in measured.rounds:
                pair(
                    line, partial(step_ms, keras, True, ours), partial(step_ms, legacy, False, theirs), round_
                )
        measured.line("fit's return after its last step, 2 workers", "s", RETURN_AIM_S).orch += ours
        measured.line("the same by hand (tf_keras)", "s").orch += theirs


if __name__ == "__main__":
    main()
