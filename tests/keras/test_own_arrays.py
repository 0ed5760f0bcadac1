"""TensorFlow never changes arrays of which the script's generators yield slices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from orch_command import Orch

SCRIPT = Path(__file__).with_name("own_arrays.py")
# A busy machine may take several times as long as an idle one.
pytestmark = pytest.mark.timeout(600)


def found(orch: Orch, workers: int, *cases: str, keras: str = "3") -> dict[str, dict[str, Any]]:
    """Return what the first worker prints, by case."""
    words = ("-n", str(workers), "--keras", keras, "--", str(SCRIPT), *cases)
    done = orch.start("up", *words).finish(500)
    assert done.code == 0, done.out + done.err
    lines = [line.partition(" found ")[2] for line in done.lines if "worker:0 | found " in line]
    assert len(lines) == len(cases), done.out
    return {one["case"]: one for one in map(json.loads, lines)}


def changed(values: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    return {case: one["changed"] for case, one in values.items()}


def test_arrays_stay_as_they_are(orch: Orch) -> None:
    assert changed(found(orch, 2, "own_loop", "pipeline")) == {"own_loop": [], "pipeline": []}


@pytest.mark.slow
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_workers_train_on_slices_like_one_process(orch: Orch, keras: str) -> None:
    together = found(orch, 2, "generator", "indexed", keras=keras)
    alone = found(orch, 1, "generator", "indexed", keras=keras)
    assert changed(together) == changed(alone) == {"generator": [], "indexed": []}
    for case, one in alone.items():
        assert together[case]["losses"] == pytest.approx(one["losses"], rel=1e-4)
