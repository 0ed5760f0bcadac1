"""The TensorFlow documentation's tutorials on several workers, run unmodified from an empty directory."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from orch_command import Finished, Orch
from waiting import lives

import worker

# Two workers that start TensorFlow on two busy cores.
_START_S = 180.0
pytestmark = pytest.mark.timeout(400)

TUTORIALS = Path(__file__).resolve().parents[1] / "tutorials"
DIGITS = Path(worker.__file__).parent / "training" / "data" / "digits.npz"
# Relative tolerance. Printed numbers are rounded, and sums depend on the order in which workers' shares arrive.
_CLOSE = 2e-3


@dataclass(frozen=True)
class Trained:
    """A finished run of a tutorial. `results`: the printed numbers of each worker. `methods`: fork or spawn."""

    done: Finished
    results: list[list[float]]
    methods: set[str]
    files: Path


def _train(orch: Orch, tutorial: str, *words: str, seed: bool = True, expect: int = 0) -> Trained:
    files = orch.directory.parent / f"files-{len(orch.run_dirs())}"
    changes = {"DIGITS": str(DIGITS), "OUTPUT": str(files), "EPOCHS": "2", "STEPS": "5"}
    if seed:
        changes["SEED"] = "7"
    started = orch.start("-v", "up", "-n", "2", *words, "--", str(TUTORIALS / tutorial), env={**changes})
    done = started.finish(_START_S)
    assert done.code == expect, done.out + done.err
    run = orch.run_dirs()[-1]
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    begun = [event for event in events if event["type"] == "task_started"]
    assert len(begun) == 2
    assert not any(lives(event["pid"]) for event in begun)
    assert not list(orch.directory.iterdir()), "a run leaves nothing in the user's directory"
    results = [_results((run / "logs" / f"worker-{index}.log").read_text()) for index in (0, 1)]
    return Trained(done, results, {event["method"] for event in begun}, files)


def _results(log: str) -> list[float]:
    """The losses of the Keras tutorial, accuracies and losses of the custom loop."""
    lines = re.findall(r"^losses .*|^Epoch: .*", log, re.MULTILINE)
    return [float(number) for line in lines for number in re.findall(r"\d+\.\d+", line)]


def test_keras_tutorial_trains_on_forked_workers(orch: Orch) -> None:
    trained = _train(orch, "multi_worker_keras.py", seed=False)
    assert "orch: preloaded tensorflow, keras in " in trained.done.err
    assert trained.methods == {"fork"}
    first, second = trained.results
    assert len(first) == 2 and first == second, "all workers see the same losses"
    assert (trained.files / "keras-model.keras").stat().st_size > 10_000
    assert list((trained.files / "ckpt").glob("ckpt-*.index"))
    assert not list(trained.files.glob("backup-*")), "which Keras removes when it is done"


@pytest.mark.slow
def test_keras_tutorial_has_the_same_results_forked_and_spawned(orch: Orch) -> None:
    forked, spawned = (_train(orch, "multi_worker_keras.py", "--start", way) for way in ("auto", "spawn"))
    assert (forked.methods, spawned.methods) == ({"fork"}, {"spawn"})
    assert "orch: not preloaded: --start spawn asks for it" in spawned.done.err
    assert len(forked.results[0]) == 2
    assert forked.results[0] == forked.results[1]
    assert forked.results[0] == pytest.approx(spawned.results[0], rel=_CLOSE)


@pytest.mark.slow
def test_custom_loop_has_the_same_results_forked_and_spawned(orch: Orch) -> None:
    forked, spawned = (_train(orch, "custom_loop.py", "--start", way) for way in ("auto", "spawn"))
    assert (forked.methods, spawned.methods) == ({"fork"}, {"spawn"})
    assert "orch: preloaded tensorflow, tf_keras in " in forked.done.err
    for trained in (forked, spawned):
        assert (
            "uses reset_states of a metric, which Keras 3 does not have: tf_keras is used" in trained.done.err
        )
        assert len(trained.results[0]) == 4, "an accuracy and a loss in each of two epochs"
        assert trained.results[0] == trained.results[1]
        assert list((trained.files / "ckpt").glob("ckpt-*.index"))
    assert forked.results[0] == pytest.approx(spawned.results[0], rel=_CLOSE)


@pytest.mark.slow
def test_custom_loop_on_keras_3_fails_with_advice(orch: Orch) -> None:
    trained = _train(orch, "custom_loop.py", "--keras", "3", expect=1)
    assert len(trained.results[0]) == 2, "it fails after its first epoch"
    first = orch.result()["first_failure"]
    assert first["exception"].endswith("'SparseCategoricalAccuracy' object has no attribute 'reset_states'")
    assert "--keras legacy" in first["advice"]
    assert first["advice"] in trained.done.err


@pytest.mark.slow
def test_keras_without_fixes_fails_with_advice(orch: Orch) -> None:
    trained = _train(orch, "multi_worker_keras.py", "--no-fixes", expect=1)
    assert "orch: Keras" not in trained.done.out
    first = orch.result()["first_failure"]
    assert "PerReplica" in Path(first["exception_file"]).read_text()
    assert "--no-fixes" in first["advice"] and "--keras legacy" in first["advice"]
    assert first["advice"] in trained.done.err


@pytest.mark.slow
def test_tutorial_runs_under_a_named_python(orch: Orch) -> None:
    """`python train.py`, with the tutorial's directory as the current one."""
    python, here = sys.executable, str(TUTORIALS)
    changes = {"DIGITS": str(DIGITS), "OUTPUT": str(orch.directory), "EPOCHS": "1", "STEPS": "2"}
    words = ("-v", "up", "-n", "2", "--cwd", here, "--", python, "multi_worker_keras.py")
    done = orch.start(*words, env={**changes}).finish(_START_S)
    assert done.code == 0, done.out + done.err
    assert "orch: preloaded tensorflow, keras in " in done.err
