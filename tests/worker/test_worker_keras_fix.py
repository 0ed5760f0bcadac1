"""The repair of Keras 3's multi-worker fit: what it repairs, that it is needed and that it suffices."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from cluster import run_workers

from worker.bootstrap.keras_fix.trainer import Fault, find_faults, fix_multi_worker_fit, parse_version

# A busy machine may take several times as long as a free one.
pytestmark = pytest.mark.timeout(600)

PLAIN_FIT = Path(__file__).with_name("plain_fit.py")

BROKEN_BUILDING = "self.distribute_strategy.reduce('MEAN', batch, axis=None)"
BROKEN_REDUCING = "strategy.reduce('MEAN', v, axis=0)"
SOUND_BUILDING = "self.distribute_strategy.experimental_local_results(batch)[0]"
SOUND_REDUCING = "strategy.reduce('MEAN', v, axis=None)"


def trainer(directory: Path, building: str, reducing: str) -> ModuleType:
    """A module with the parts of Keras's trainer that are looked at."""
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
def test_the_broken_code_is_recognised(
    building: str, reducing: str, faults: set[Fault], tmp_path: Path
) -> None:
    assert find_faults("3.15.1", trainer(tmp_path, building, reducing)) == faults


@pytest.mark.parametrize("version", ["2.15.0", "3.16.0", "4.0.0", "nonsense"])
def test_versions_nobody_has_looked_at_are_left_alone(version: str, tmp_path: Path) -> None:
    assert find_faults(version, trainer(tmp_path, BROKEN_BUILDING, BROKEN_REDUCING)) == set()


def test_a_trainer_without_those_parts_is_left_alone() -> None:
    assert find_faults("3.15.1", ModuleType("empty")) == set()


@pytest.mark.parametrize(
    ("text", "version"), [("3.15.1", (3, 15)), ("3.9.0.dev2024", (3, 9)), ("10.2", (10, 2)), ("x", (0, 0))]
)
def test_versions_are_read(text: str, version: tuple[int, int]) -> None:
    assert parse_version(text) == version


def test_one_worker_needs_nothing() -> None:
    assert fix_multi_worker_fit(1) is None


def test_fit_fails_on_two_workers_without_the_fix(tmp_path: Path) -> None:
    with run_workers(tmp_path, 2, program=[str(PLAIN_FIT)]) as cluster:
        assert cluster.wait() == [0, 0], cluster.describe()
        for output in cluster.outputs:
            assert re.search(
                "^failed ValueError: Attempt to convert .*unsupported type", output, re.M | re.S
            ), cluster.describe()


def test_fit_and_evaluate_work_on_two_workers_with_the_fix(tmp_path: Path) -> None:
    with run_workers(tmp_path, 2, ["fixed"], program=[str(PLAIN_FIT)]) as cluster:
        assert cluster.wait() == [0, 0], cluster.describe()
        fitted = [re.findall("^fitted .*$", output, re.MULTILINE) for output in cluster.outputs]
        assert fitted[0], cluster.describe()
        assert fitted[0] == fitted[1], cluster.describe()
        for output in cluster.outputs:
            assert "multi-worker fit is broken (keras-team/keras#20585); fixed for this process" in output
