"""Keras 3 on two workers, fixed: losses, metrics and weights equal those of one process with the same batches.

The cases are in `cases`; test_numbers runs those of the table in docs/keras.md, these tests the others.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from case_runs import ROUNDING, Outcome, Values, difference, run_cases
from forks import ForkServer

# A busy machine may take several times as long as an idle one.
pytestmark = pytest.mark.timeout(900)
Factory = pytest.TempPathFactory

QUICK = ["counted_steps", "everything_uneven"]
# For layers with 8 or 11 bits of mantissa: the halves of a batch are rounded separately.
LIKE_ONE = {
    "progress_of_the_chief": ROUNDING,
    "one_example_a_step": ROUNDING,
    "convolutions": ROUNDING,
    "summed_loss_with_a_regulariser": ROUNDING,
    "mean_beside_sum": ROUNDING,
    "mean_beside_sum_without_examples": ROUNDING,
    "table_beside_batches": ROUNDING,
    "shuffled_without_a_seed": ROUNDING,
    "endless_then_finite": ROUNDING,
    "overflow": 2e-2,
    "own_test_step": ROUNDING,
    "test_step_of_the_object": ROUNDING,
    "fit_within_a_fit": ROUNDING,
    "counts_in_int64": 0.0,
}
# Cases with other values in one process. Only the workers are compared.
APART = [
    *("no_examples_for_batch_norm", "files_of_different_length", "texts_of_different_length"),
    *("own_metrics_method", "other_state", "own_step", "batches_one_by_one", "moving_statistics"),
]
OTHERS = ["explained", "refused", "dropped", "two_logs_of_one_name"]


def assert_like_one(case: str, trained: Outcome, reference: Outcome, tolerance: float) -> None:
    [alone] = reference.of(case)
    for values in trained.of(case):
        found = difference(without_means_of_halves(values), without_means_of_halves(alone))
        assert isinstance(found, float) and found <= tolerance, f"{case}: {found}"


def without_means_of_halves(values: Values) -> Values:
    """The number of examples that a step returns is that of a worker's part."""
    return {name: value for name, value in values.items() if not name.endswith(" val_count")}


# -- in the gate


@pytest.fixture(scope="module")
def quick_alone(tmp_path_factory: Factory, forks: ForkServer) -> Outcome:
    return run_cases(tmp_path_factory.mktemp("alone"), 1, [*QUICK, "rows_of_each_part"], forks=forks)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: Factory, forks: ForkServer) -> Outcome:
    return run_cases(tmp_path_factory.mktemp("together"), 2, [*QUICK, "drawn_by_tensorflow"], forks=forks)


def test_two_workers_train_like_one_process(quick: Outcome, quick_alone: Outcome) -> None:
    for case in QUICK:
        assert_like_one(case, quick, quick_alone, ROUNDING)


def test_workers_draw_different_numbers(quick: Outcome) -> None:
    first, second = quick.of("drawn_by_tensorflow")
    for name in first:
        assert np.any(first[name] != second[name]), name


def test_steps_are_counted_over_two_fits(quick: Outcome) -> None:
    steps = quick.of("counted_steps")[0]
    assert steps["done"].tolist() == [*range(1, 7)]
    assert set(steps["start"]) == {3}


def test_each_worker_says_once_what_is_fixed(quick: Outcome, quick_alone: Outcome) -> None:
    assert [output.count("said: Keras 3") for output in quick.outputs] == [1, 1], quick.outputs
    assert "said:" not in quick_alone.outputs[0]


def test_rows_of_an_example_follow_from_shapes(quick_alone: Outcome) -> None:
    [found] = quick_alone.of("rows_of_each_part")
    rows = {name: numbers.tolist() for name, numbers in found.items()}
    assert "Part 1 of the data set is the same in every batch" in rows.pop("refused")
    error = rows.pop("taken of no shapes")
    assert "Part 0 of the data set has another number of rows than part 1" in error
    assert rows == {
        "batch": [1, 1],
        "rows and a table": [2, 1, 0],
        "rows and a table of full batches": [2, 1, 0],
        "shapes": [2, 1],
        "constants": [-1, -1],
        "no shapes": [-1, 1],
        "sparse": [-1, 1],
        "zip": [1, 1, 0],
        "batches of slices": [-1, -1],
        "taken of rows and a table": [12, 6, 5],
    }


# -- all other cases


@pytest.fixture(scope="module")
def alone(tmp_path_factory: Factory) -> Outcome:
    return run_cases(tmp_path_factory.mktemp("alone"), 1, [*LIKE_ONE, "moving_statistics_by_hand"])


@pytest.fixture(scope="module")
def together(tmp_path_factory: Factory) -> Outcome:
    return run_cases(tmp_path_factory.mktemp("together"), 2, [*LIKE_ONE, *APART, *OTHERS])


@pytest.mark.slow
def test_values_equal_those_of_one_process(alone: Outcome, together: Outcome) -> None:
    for case, tolerance in LIKE_ONE.items():
        assert_like_one(case, together, alone, tolerance)


@pytest.mark.slow
def test_workers_have_equal_and_finite_values(together: Outcome) -> None:
    for case in [*LIKE_ONE, *APART]:
        for name, value in together.of_all(case).items():
            assert np.all(np.isfinite(value)), f"{case}: {name}"


@pytest.mark.slow
def test_three_workers_share_two_examples(tmp_path: Path) -> None:
    reference = run_cases(tmp_path / "alone", 1, ["fewer_than_workers"])
    trained = run_cases(tmp_path / "together", 3, ["fewer_than_workers"])
    assert_like_one("fewer_than_workers", trained, reference, ROUNDING)


@pytest.mark.slow
def test_moving_statistics_are_the_mean_of_the_workers(alone: Outcome, together: Outcome) -> None:
    trained, [by_hand] = together.of_all("moving_statistics"), alone.of("moving_statistics_by_hand")
    for name, value in by_hand.items():
        np.testing.assert_allclose(trained[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_dropout_masks_differ_between_workers_and_are_those_of_the_next_run(
    together: Outcome, tmp_path: Path
) -> None:
    first, second = together.of("dropped")
    np.testing.assert_array_equal(first["kernel"], second["kernel"])
    np.testing.assert_array_equal(first["trained"], second["trained"])
    for name in ("masks 0", "masks 1", "masks 2"):
        for mask in range(2):
            assert (first[name][mask] != second[name][mask]).any(), name
    for before, after in zip((first, second), run_cases(tmp_path, 2, ["dropped"]).of("dropped"), strict=True):
        for name, value in before.items():
            np.testing.assert_array_equal(value, after[name], err_msg=name)


@pytest.mark.slow
def test_chief_explains_once_what_differs(together: Outcome) -> None:
    assert together.of("explained")[0]["used"].tolist() == [18, 18]
    for text in ('the loss "mean" returns one number for a batch.', "each worker uses 9 of its 18 examples"):
        assert [output.count(text) for output in together.outputs] == [1, 0], together.outputs


@pytest.mark.slow
def test_all_workers_refuse_impossible_trainings(together: Outcome) -> None:
    found = together.of("refused")
    for rank, values in enumerate(found):
        assert "jit_compile=True does not work with several workers" in str(values["xla"])
        assert f"different lengths, this one of {2 + rank} batches" in str(values["lengths"])
    assert found[0]["loss"] == found[1]["loss"]


@pytest.mark.slow
def test_callbacks_on_one_path_without_tf_config(together: Outcome) -> None:
    for rank, values in enumerate(together.of("two_logs_of_one_name")):
        assert values["lines"].tolist() == [3, 3]  # a header and a line an epoch
        assert values["files"] == 2
        assert values["shared"].tolist() == [rank == 0] * 2


@pytest.mark.slow
def test_a_step_takes_one_collective_whatever_the_metrics(tmp_path: Path) -> None:
    for values in run_cases(tmp_path, 2, ["collectives"]).of("collectives"):
        assert values["in a training step"] == 1
        assert values["in a test step"] == 0
        assert values["steps"] == 6
        assert values["at once"] == 0


# -- without the fix. If one of these fails, Keras has repaired the fault, and the fix must be removed.


@pytest.mark.slow
def test_fit_fails_on_two_workers_without_the_fix(tmp_path: Path) -> None:
    outcome = run_cases(tmp_path, 2, ["arrays"], fixed=False)
    assert outcome.codes == [1, 1]
    for output in outcome.outputs:
        assert re.search("ValueError: Attempt to convert .*unsupported type", output, re.S), output


@pytest.mark.slow
def test_without_the_fix_the_workers_drop_the_same_units(tmp_path: Path) -> None:
    run_cases(tmp_path, 2, ["unfixed_masks"], fixed=False).of_all("unfixed_masks")
