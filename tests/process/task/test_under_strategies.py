"""Faults of Keras 3 under one strategy are repaired in an unmodified script, and each is logged once."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tasks import finished, running

from worker.bootstrap.keras_fix import EACH_STRATEGY, repair_each_strategy, reporter

SCRIPT = Path(__file__).with_name("replicas_script.py")
# All cases. A busy machine may take ten times as long as an idle one: a test that reaches this limit hangs.
LONGEST_RUN_S = 900.0
TWO_REPLICAS = {"ORCH_REPLICAS": "2", "CUDA_VISIBLE_DEVICES": "-1", "TF_CONFIG": None}


Results = tuple[dict[str, Any], list[str]]


def slow(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.slow(pytest.mark.timeout(1000)(test))


def results(directory: Path, *, fixes: bool) -> Results:
    """The result of each case of the script, and the lines that orch logged."""
    with running(directory, [SCRIPT], env=TWO_REPLICAS, fixes=fixes) as task:
        assert task.process.wait(LONGEST_RUN_S) == 0, task.output
    lines = task.output.splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return {one["case"]: one["found"] for one in found}, [line for line in lines if line.startswith("orch:")]


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return results(tmp_path_factory.mktemp("fixed"), fixes=True)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The same script with Keras as released."""
    return results(tmp_path_factory.mktemp("released"), fixes=False)


# What orch logs once for each fault.
FAULTS = (
    "sums up metrics wrongly under CentralStorageStrategy",
    "looks for overflow in the first replica alone",
    "cannot make an optimizer's variables",
    "created outside of the strategy's scope",
)
# A case, and the one of a single replica that has the same numbers.
EQUAL = {
    "metrics central-storage": "metrics one",
    "late mirrored": "late one",
    "late mirrored scaled": "late one",
    "outside mirrored": "outside one",
    "outside mirrored, made before": "outside one",
}


@slow
@pytest.mark.parametrize("case", EQUAL)
def test_numbers_are_those_of_one_replica(fixed: Results, case: str) -> None:
    found, _ = fixed
    assert found[case] == pytest.approx(found[EQUAL[case]], rel=1e-5)


@slow
def test_an_overflow_in_one_replica(fixed: Results) -> None:
    # The step in which one replica's gradient overflows is left out by both, and the scale is halved.
    for case in ("overflow mirrored", "overflow central-storage"):
        assert fixed[0][case] == [[0.75, 4.0, 1.0], [0.75, 2.0, 1.0], [0.5, 2.0, 2.0]]


@slow
def test_each_fault_is_logged_once(fixed: Results) -> None:
    assert [sum(fault in line for line in fixed[1]) for fault in FAULTS] == [1] * len(FAULTS), fixed[1]


@slow
def test_without_the_fixes_each_fault_shows_and_nothing_is_logged(released: Results) -> None:
    found, said = released
    metrics = found["metrics central-storage"]
    assert metrics[-1] == pytest.approx(found["metrics one"][-1], rel=1e-5)
    assert metrics != pytest.approx(found["metrics one"], rel=1e-2)
    assert not math.isfinite(found["overflow mirrored"][-1][0])
    assert "must specify an aggregation method" in found["overflow central-storage"]
    assert "You must feed a value for placeholder tensor" in found["late mirrored"]
    assert "Mixing different tf.distribute.Strategy objects" in found["outside mirrored"]
    assert said == []


@pytest.mark.parametrize("fixes", [True, False])
def test_a_keras_with_another_layout_is_reported_and_imported(fixes: bool, tmp_path: Path) -> None:
    """Its version is known, but its parts are in other places."""
    (tmp_path / "keras.py").write_text(
        "from types import SimpleNamespace\n"
        "__version__ = '3.15.1'\n"
        "backend = SimpleNamespace(backend=lambda: 'tensorflow')\n"
    )
    (tmp_path / "script.py").write_text("import keras\nprint('continued with', keras.__version__)\n")
    task = finished(tmp_path, ["script.py"], env={"TF_CONFIG": None}, fixes=fixes)
    assert task.process.returncode == 0, task.output
    said = [line for line in task.output.splitlines() if line.startswith("orch:")]
    assert len(said) == int(fixes)
    assert all("Keras is as released, or repaired in part: ModuleNotFoundError" in line for line in said)
    assert "continued with 3.15.1" in task.output


def keras_of(version: str, backend: str) -> ModuleType:
    """A module with the attributes that are read before a repair, and nothing to repair."""
    module = ModuleType("keras")
    module.__version__ = version  # type: ignore[attr-defined]
    module.backend = SimpleNamespace(backend=lambda: backend)  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize(
    ("version", "backend"),
    [("3.15.1", "jax"), ("3.9.2", "tensorflow"), ("3.16.0", "tensorflow"), ("2.15", "")],
)
def test_other_versions_and_backends_are_left_alone(version: str, backend: str) -> None:
    before = set(sys.modules)
    repair_each_strategy(keras_of(version, backend), pytest.fail)
    modules = tuple(name.partition(".")[0] for name in EACH_STRATEGY)
    assert not any(name.endswith(modules) for name in set(sys.modules) - before)


def test_a_fault_is_logged_once() -> None:
    said: list[str] = []
    report = reporter(keras_of("3.15.1", "tensorflow"), said.append)
    for fault in ("does this", "does that", "does this"):
        report(fault)
    assert said == [f"Keras 3.15.1 {fault}; fixed for this process" for fault in ("does this", "does that")]
