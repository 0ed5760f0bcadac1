"""The faults of Keras 3's fit with several workers: how they are found, and that the repair is needed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from worker.bootstrap.keras_fix import arm, parse_version, repair
from worker.bootstrap.keras_fix.trainer import Fault, find_faults

BROKEN_BUILDING = "self.distribute_strategy.reduce('MEAN', batch, axis=None)"
BROKEN_REDUCING = "strategy.reduce('MEAN', v, axis=0)"
SOUND_BUILDING = "self.distribute_strategy.experimental_local_results(batch)[0]"
SOUND_REDUCING = "strategy.reduce('MEAN', v, axis=None)"


def trainer(directory: Path, building: str, reducing: str) -> ModuleType:
    """A module with the parts of Keras's trainer that are searched for faults."""
    path = directory / "some_trainer.py"
    path.write_text(
        "class TensorFlowTrainer:\n"
        "    def _maybe_symbolic_build(self, iterator=None, data_batch=None):\n"
        f"        return {building}\n\n"
        "def reduce_per_replica(values, strategy, reduction):\n"
        "    def _reduce(v):\n"
        f"        return {reducing}\n"
        "    return [_reduce(v) for v in values]\n"
    )
    spec = importlib.util.spec_from_file_location("some_trainer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("building", "reducing", "faults"),
    [
        (BROKEN_BUILDING, BROKEN_REDUCING, {Fault.BUILDING, Fault.REDUCING}),
        (BROKEN_BUILDING, SOUND_REDUCING, {Fault.BUILDING}),
        (SOUND_BUILDING, BROKEN_REDUCING, {Fault.REDUCING}),
        (SOUND_BUILDING, SOUND_REDUCING, set()),
    ],
)
def test_faults_are_found_in_the_source(
    building: str, reducing: str, faults: set[Fault], tmp_path: Path
) -> None:
    assert find_faults("3.15.1", trainer(tmp_path, building, reducing)) == faults


@pytest.mark.parametrize("version", ["2.15.0", "3.9.2", "3.16.0", "4.0.0", "nonsense"])
def test_unknown_versions_have_no_faults(version: str, tmp_path: Path) -> None:
    assert find_faults(version, trainer(tmp_path, BROKEN_BUILDING, BROKEN_REDUCING)) == set()


def test_a_trainer_without_those_parts_has_no_faults() -> None:
    assert find_faults("3.15.1", ModuleType("empty")) == set()


@pytest.mark.parametrize(
    ("text", "version"), [("3.15.1", (3, 15)), ("3.9.0.dev2024", (3, 9)), ("10.2", (10, 2)), ("x", (0, 0))]
)
def test_versions_are_parsed(text: str, version: tuple[int, int]) -> None:
    assert parse_version(text) == version


def test_one_worker_needs_no_repair() -> None:
    assert repair(ModuleType("keras"), 1) is None


def test_a_version_too_old_to_be_fixed_is_reported() -> None:
    module = ModuleType("keras")
    module.__version__ = "3.6.0"  # type: ignore[attr-defined]
    module.backend = SimpleNamespace(backend=lambda: "tensorflow")  # type: ignore[attr-defined]
    line = repair(module, 2)
    assert line is not None
    assert line.startswith("Keras 3.6.0 is broken with 2 workers and too old to be fixed: pip install")
    module.backend = SimpleNamespace(backend=lambda: "jax")  # type: ignore[attr-defined]
    assert repair(module, 2) is None


def test_a_failed_repair_is_logged_and_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("keras")
    module.__version__ = "3.15.1"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keras", module)
    said: list[str] = []
    arm(2, said.append)
    assert said == [
        "Keras could not be fixed for 2 workers: AttributeError: module 'keras' has no attribute 'backend'"
    ]
