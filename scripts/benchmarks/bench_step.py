"""Measures steady steps and the end of `fit`: orch beside a shell loop, Keras 3 beside tf_keras.

    scripts/bench step [--rounds 5] [--steps 400] [--json FILE]

A step's time is the median of the steps after the tenth. By hand, `fit` runs on several workers only with tf_keras
(TF_USE_LEGACY_KERAS=1): the released Keras 3 fails.
"""

from __future__ import annotations

from functools import partial

from bench_cluster import LARGE, SMALL, Clusters, Script
from bench_pairs import bench

SIZES = {"8 k parameters": (SMALL, 0.45), "2.8 M parameters": (LARGE, 0.95)}
RETURN_AIM_S = 0.3


def main() -> None:
    with bench("step", __doc__, rounds=5, steps=400) as measured:
        clusters, steps = Clusters(measured), measured.given.steps
        returned: dict[bool, list[float]] = {True: [], False: []}

        def step_ms(script: Script, by_orch: bool) -> float:
            trained = clusters.trained(script, by_orch)
            if script.name == "keras_fit.py":
                returned[by_orch].append(trained.fit_returned_after)
            return trained.steady_ms

        for workers in (2, 4):
            line = measured.line(f"custom loop, {workers} workers", "ms", 1.02, "shell loop")
            script = Script("custom_loop.py", workers, steps)
            measured.compare(line, partial(step_ms, script, True), partial(step_ms, script, False))
        for size, (widths, aim) in SIZES.items():
            line = measured.line(f"fit, 2 workers, {size}", "ms", aim, "tf_keras by shell loop")
            keras = Script("keras_fit.py", 2, steps, widths)
            legacy = Script("keras_fit.py", 2, steps, widths, {"TF_USE_LEGACY_KERAS": "1"})
            measured.compare(line, partial(step_ms, keras, True), partial(step_ms, legacy, False))
        measured.line("fit's return after its last step, 2 workers", "s", RETURN_AIM_S).orch += returned[True]
        measured.line("the same by hand (tf_keras)", "s").orch += returned[False]


if __name__ == "__main__":
    main()
