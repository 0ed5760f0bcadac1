"""A script's own models on two workers: equal values on both, and those of one process where they are exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from two_workers import Outcome, run_cases

# A busy machine may take several times as long as an idle one.
pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

HERE = Path(__file__).parent
CASES = [HERE / name for name in ("training_cases.py", "own_step_cases.py")]
# Relative tolerance against one process. Metrics are float32 everywhere.
LIKE_ONE = {
    "own_test_step": 5e-5,
    "test_step_of_the_object": 5e-5,
    "fit_within_a_fit": 5e-5,
    "compiled_outside_of_the_scope": 5e-5,
    "counts_in_int64": 0.0,
    "computed_in_float64": 1e-6,
}
EQUAL = [*LIKE_ONE, "own_metrics_method"]
# Averages of values that the workers compute from halves of a batch.
HALVES = ("count",)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_cases(tmp_path_factory.mktemp("alone"), 1, CASES, list(LIKE_ONE))


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_cases(tmp_path_factory.mktemp("together"), 2, CASES, [*EQUAL, "two_logs_of_one_name"])


@pytest.mark.parametrize("case", EQUAL)
def test_workers_have_equal_values(case: str, together: Outcome) -> None:
    first, second = together.of(case)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=f"{case}: {name}")


@pytest.mark.parametrize("case", LIKE_ONE)
def test_values_equal_those_of_one_process(case: str, alone: Outcome, together: Outcome) -> None:
    [reference], values = alone.of(case), together.of(case)[0]
    assert values.keys() == reference.keys()
    for name in reference:
        if not name.endswith(HALVES):
            np.testing.assert_allclose(
                values[name], reference[name], rtol=LIKE_ONE[case], err_msg=f"{case}: {name}"
            )


def test_callbacks_on_one_path_without_tf_config(together: Outcome) -> None:
    for rank, values in enumerate(together.of("two_logs_of_one_name")):
        assert values["lines"].tolist() == [3, 3]  # a header and a line an epoch
        assert values["files"] == 2
        assert values["shared"].tolist() == [rank == 0] * 2
