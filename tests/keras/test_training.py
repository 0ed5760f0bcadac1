"""Keras 3 on two workers, fixed: losses, metrics and weights equal those of one process with the same batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from forks import ForkServer
from two_workers import Outcome, Values, run_cases

# A busy machine may take several times as long as an idle one.
pytestmark = pytest.mark.timeout(900)

CASES = [Path(__file__).with_name(f"{name}_cases.py") for name in ("training", "model", "report", "uneven")]
REFUSED_CASES = Path(__file__).with_name("refused_cases.py")
# Relative tolerance, since sums are taken in another order. Values below 1e-3 count as 1e-3.
EXACT = 5e-5
# For layers with 8 or 11 bits of mantissa: the halves of a batch are rounded separately.
HALF = 2e-2

QUICK = [
    *("uneven_last_batch", "progress_of_the_chief", "counted_steps", "everything_uneven"),
    *("class_weights", "own_training_step"),
]
LONG = {
    "plain_adam": EXACT,
    "evaluate_and_predict": EXACT,
    "momentum": EXACT,
    "shuffled": EXACT,
    "shuffled_without_a_seed": EXACT,
    "class_weights": EXACT,
    "sample_weights": EXACT,
    "validation_data": EXACT,
    "validation_split": EXACT,
    "regularisers": EXACT,
    "lonely_example": EXACT,
    "odd_batches": EXACT,
    "several_steps_an_execution": EXACT,
    "several_steps_without_end": EXACT,
    "finite_batches": EXACT,
    "endless_then_finite": EXACT,
    "bfloat16": HALF,
    "float16_with_loss_scaling": HALF,
    "loss_scaling_with_overflow": HALF,
    "early_stopping": EXACT,
    "clipped_gradients": EXACT,
    "globally_clipped_gradients": EXACT,
    "accumulated_gradients": EXACT,
    "decayed_averaged_weights": EXACT,
    "on_single_batches": EXACT,
    "own_training_step": EXACT,
    "two_outputs": EXACT,
    "many_metrics": EXACT,
    "generator": EXACT,
    "py_dataset": EXACT,
    "eagerly": EXACT,
    "logs_of_each_step": EXACT,
    "embedding": EXACT,
    "summed_loss": EXACT,
    "own_distributed_batches": EXACT,
    "own_loop_with_clipping": EXACT,
    "own_metrics": EXACT,
    "two_inputs": EXACT,
    "own_step_logs": EXACT,
    "one_number": EXACT,
    "losses_of_outputs": EXACT,
    "metric_outside_of_the_scope": EXACT,
    "one_example_a_step": EXACT,
    "convolutions": EXACT,
    "summed_loss_with_a_regulariser": EXACT,
    "large_metric": EXACT,
    "own_results": EXACT,
    "mean_beside_sum": EXACT,
    "mean_beside_sum_without_examples": EXACT,
    "rows_of_pairs": EXACT,
    "table_beside_batches": EXACT,
}
# Cases with other values in one process. Only the workers are compared.
APART = ["no_examples_for_batch_norm", "files_of_different_length", "texts_of_different_length"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_cases(tmp_path_factory.mktemp("alone"), 1, CASES, list(LONG))


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_cases(tmp_path_factory.mktemp("together"), 2, CASES, [*LONG, *APART, "own_shards"])


def assert_alike(values: Values, reference: Values, tolerance: float, case: str) -> None:
    assert values.keys() == reference.keys()
    for name, expected in reference.items():
        if name == "logs" and not len(values[name]):
            continue  # read by the chief alone
        np.testing.assert_allclose(
            values[name], expected, rtol=tolerance, atol=tolerance * 1e-3, err_msg=f"{case}: {name}"
        )


def test_two_workers_train_like_one_process(tmp_path: Path, forks: ForkServer) -> None:
    reference = run_cases(tmp_path / "alone", 1, CASES, QUICK, forks=forks)
    trained = run_cases(tmp_path / "together", 2, CASES, [*QUICK, "drawn_by_tensorflow"], forks=forks)
    for case in QUICK:
        for values in trained.of(case):
            assert_alike(values, reference.of(case)[0], EXACT, case)
    first, second = trained.of("drawn_by_tensorflow")
    for name in first:
        assert np.any(first[name] != second[name]), name
    steps = trained.of("counted_steps")[0]
    assert steps["done"].tolist() == [*range(1, 9)]
    assert set(steps["start"]) == {4}
    said = [output.count("said: Keras 3") for output in trained.outputs]
    assert said == [1, 1], trained.outputs
    assert "said:" not in reference.outputs[0]


def test_rows_of_an_example_follow_from_shapes(tmp_path: Path, forks: ForkServer) -> None:
    [found] = run_cases(tmp_path, 1, CASES, ["rows_of_each_part"], forks=forks).of("rows_of_each_part")
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
        "taken of rows and a table": [16, 8, 5],
    }


@pytest.mark.slow
def test_three_workers_share_two_examples(tmp_path: Path) -> None:
    reference = run_cases(tmp_path / "alone", 1, CASES, ["fewer_than_workers"])
    trained = run_cases(tmp_path / "together", 3, CASES, ["fewer_than_workers"])
    for values in trained.of("fewer_than_workers"):
        assert_alike(values, reference.of("fewer_than_workers")[0], EXACT, "fewer_than_workers")


@pytest.mark.slow
@pytest.mark.parametrize("case", LONG)
def test_values_equal_those_of_one_process(case: str, alone: Outcome, together: Outcome) -> None:
    for values in together.of(case):
        assert_alike(values, alone.of(case)[0], LONG[case], case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in [*LONG, *APART] if case != "logs_of_each_step"])
def test_workers_have_equal_values(case: str, together: Outcome) -> None:
    first, second = together.of(case)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=f"{case}: {name}")
        assert np.all(np.isfinite(first[name])), f"{case}: {name}"


@pytest.mark.slow
def test_chief_explains_once_what_differs(together: Outcome) -> None:
    assert together.of("own_shards")[0]["used"].tolist() == [32, 32]
    for text in ('the loss "mean" returns one number for a batch.', "each worker uses 16 of its 32 examples"):
        assert [output.count(text) for output in together.outputs] == [1, 0], together.outputs


@pytest.mark.slow
def test_all_workers_refuse_impossible_trainings(tmp_path: Path) -> None:
    refused = run_cases(tmp_path, 2, REFUSED_CASES, ["xla", "epochs_of_different_lengths"])
    for values in refused.of("xla"):
        assert "jit_compile=True does not work with several workers" in str(values["refused"])
    lengths = refused.of("epochs_of_different_lengths")
    for rank, values in enumerate(lengths):
        assert f"different lengths, this one of {2 + rank} batches" in str(values["refused"])
    assert lengths[0]["loss"] == lengths[1]["loss"]
