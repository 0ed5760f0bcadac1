"""Faults of Keras 3 under one strategy are repaired in an unmodified script, and each is logged once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tasks import finished, running

from worker.bootstrap.keras_fix import EACH_STRATEGY, repair_each_strategy, reporter

SCRIPT = Path(__file__).with_name("replicas_script.py")
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


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_numbers_are_those_of_one_replica(tmp_path: Path) -> None:
    env = {"ORCH_REPLICAS": "2", "CUDA_VISIBLE_DEVICES": "-1", "TF_CONFIG": None}
    with running(tmp_path, [SCRIPT], env=env, fixes=True) as task:
        # All cases. A busy machine may take ten times as long as an idle one.
        assert task.process.wait(900.0) == 0, task.output
    lines = task.output.splitlines()
    found = {one["case"]: one["found"] for one in (json.loads(line) for line in lines if line[:1] == "{")}
    for case, single in EQUAL.items():
        assert found[case] == pytest.approx(found[single], rel=1e-5), case
    # The step in which one replica's gradient overflows is left out by both, and the scale is halved.
    for case in ("overflow mirrored", "overflow central-storage"):
        assert found[case] == [[0.75, 4.0, 1.0], [0.75, 2.0, 1.0], [0.5, 2.0, 2.0]]
    said = [line for line in lines if line.startswith("orch:")]
    assert [sum(fault in line for line in said) for fault in FAULTS] == [1] * len(FAULTS), said


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


def keras_of(version: str, backend: str) -> Any:
    """A module with the attributes that are read before a repair, and nothing to repair."""
    return SimpleNamespace(__version__=version, backend=SimpleNamespace(backend=lambda: backend))


def test_other_versions_and_backends_are_left_alone() -> None:
    before = set(sys.modules)
    for given in ("3.15.1 jax", "3.9.2 tensorflow", "3.16.0 tensorflow", "2.15 "):
        version, backend = given.split(" ")
        repair_each_strategy(keras_of(version, backend), pytest.fail)
    modules = tuple(name.partition(".")[0] for name in EACH_STRATEGY)
    assert not any(name.endswith(modules) for name in set(sys.modules) - before)


def test_a_fault_is_logged_once() -> None:
    said: list[str] = []
    report = reporter(keras_of("3.15.1", "tensorflow"), said.append)
    for fault in ("does this", "does that", "does this"):
        report(fault)
    assert said == [f"Keras 3.15.1 {fault}; fixed for this process" for fault in ("does this", "does that")]
