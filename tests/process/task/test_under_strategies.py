"""Faults of Keras 3 under one strategy are repaired in an unmodified script, and each is logged once."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tasks import finished, running

from worker.bootstrap.keras_fix import EACH_STRATEGY, repair_each_strategy, reporter

SCRIPT = Path(__file__).with_name("replicas_script.py")
# A busy machine may take several times as long as an idle one: a test that reaches this limit hangs.
LONGEST_RUN_S = 300.0
TWO_REPLICAS = {"ORCH_REPLICAS": "2", "CUDA_VISIBLE_DEVICES": "-1", "TF_CONFIG": None}


def found_by(directory: Path, *cases: str, fixes: bool) -> tuple[dict[str, Any], list[str]]:
    """The result of each case of the script, and the lines that orch logged."""
    with running(directory, [SCRIPT, *cases], env=TWO_REPLICAS, fixes=fixes) as task:
        assert task.process.wait(LONGEST_RUN_S) == 0, task.output
    lines = task.output.splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return {one["case"]: one["found"] for one in found}, [line for line in lines if line.startswith("orch:")]


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_metrics_under_central_storage(tmp_path: Path) -> None:
    found, said = found_by(tmp_path, "metrics one", "metrics central-storage", fixes=True)
    assert found["metrics central-storage"] == pytest.approx(found["metrics one"], rel=1e-5)
    assert [line for line in said if "sums up metrics wrongly under CentralStorageStrategy" in line] == said
    assert len(said) == 1


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_an_overflow_in_one_replica(tmp_path: Path) -> None:
    found, said = found_by(tmp_path, "overflow mirrored", "overflow central-storage", fixes=True)
    # The step in which one replica's gradient overflows is left out by both, and the scale is halved.
    assert set(found) == {"overflow mirrored", "overflow central-storage"}
    for steps in found.values():
        assert steps == [[0.75, 4.0, 1.0], [0.75, 2.0, 1.0], [0.5, 2.0, 2.0]]
    assert [line for line in said if "looks for overflow in the first replica alone" in line] == said
    assert len(said) == 1


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_an_optimizer_that_was_not_built(tmp_path: Path) -> None:
    found, said = found_by(tmp_path, "late one", "late mirrored", "late mirrored scaled", fixes=True)
    assert found["late mirrored"] == pytest.approx(found["late one"], rel=1e-5)
    assert found["late mirrored scaled"] == pytest.approx(found["late one"], rel=1e-5)
    assert sum("cannot make an optimizer's variables" in line for line in said) == 1


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_a_model_that_is_compiled_outside_of_the_scope(tmp_path: Path) -> None:
    cases = ("outside one", "outside mirrored", "outside mirrored, made before")
    found, said = found_by(tmp_path, *cases, fixes=True)
    assert found["outside mirrored"] == pytest.approx(found["outside one"], rel=1e-5)
    assert found["outside mirrored, made before"] == pytest.approx(found["outside one"], rel=1e-5)
    assert sum("created outside of the strategy's scope" in line for line in said) == 1


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_without_the_fixes_a_model_that_is_compiled_outside_of_the_scope_fails(tmp_path: Path) -> None:
    found, said = found_by(tmp_path, "outside mirrored", fixes=False)
    assert "Mixing different tf.distribute.Strategy objects" in found["outside mirrored"]
    assert said == []


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_without_the_fixes_central_storage_computes_other_metrics(tmp_path: Path) -> None:
    found, said = found_by(tmp_path, "metrics one", "metrics central-storage", fixes=False)
    assert found["metrics central-storage"][-1] == pytest.approx(found["metrics one"][-1], rel=1e-5)
    assert found["metrics central-storage"] != pytest.approx(found["metrics one"], rel=1e-2)
    assert said == []


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_without_the_fixes_an_overflow_destroys_the_weights_or_fails(tmp_path: Path) -> None:
    found, said = found_by(tmp_path, "overflow mirrored", "overflow central-storage", fixes=False)
    assert not math.isfinite(found["overflow mirrored"][-1][0])
    assert "must specify an aggregation method" in found["overflow central-storage"]
    assert said == []


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_without_the_fixes_an_optimizer_that_was_not_built_fails(tmp_path: Path) -> None:
    found, said = found_by(tmp_path, "late mirrored", fixes=False)
    assert "You must feed a value for placeholder tensor" in found["late mirrored"]
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
