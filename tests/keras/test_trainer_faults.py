"""The faults of Keras 3's fit with several workers: how they are found, and that the repair is needed."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
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
    path = Path(tempfile.mkdtemp(dir=directory)) / "some_trainer.py"  # linecache keeps the text of a path
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


def test_faults_of_broken_versions_are_found_in_the_source(tmp_path: Path) -> None:
    for building, first in ((BROKEN_BUILDING, {Fault.BUILDING}), (SOUND_BUILDING, set())):
        for reducing, second in ((BROKEN_REDUCING, {Fault.REDUCING}), (SOUND_REDUCING, set())):
            found = find_faults("3.15.1", trainer(tmp_path, building, reducing))
            assert found == first | second, (building, reducing)
    broken = trainer(tmp_path, BROKEN_BUILDING, BROKEN_REDUCING)
    versions = ("2.15.0", "3.9.2", "3.16.0", "4.0.0", "nonsense")
    assert [version for version in versions if find_faults(version, broken)] == []
    assert find_faults("3.15.1", ModuleType("empty")) == set()


def test_versions_are_parsed() -> None:
    texts = ("3.15.1", "3.9.0.dev2024", "10.2", "x")
    assert [parse_version(text) for text in texts] == [(3, 15), (3, 9), (10, 2), (0, 0)]


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
