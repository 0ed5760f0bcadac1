"""The number of tasks that train in step with this one decides which Keras fixes apply."""

from __future__ import annotations

import json

import pytest

from worker.bootstrap.keras_fix.workers import place

WORKERS = {"worker": ["a:1", "b:1"]}


@pytest.mark.parametrize(
    ("cluster", "task", "expected"),
    [
        (WORKERS, ("worker", 0), (2, True)),
        (WORKERS, ("worker", 1), (2, False)),
        (WORKERS | {"chief": ["c:1"]}, ("worker", 0), (3, False)),
        (WORKERS | {"chief": ["c:1"], "ps": ["d:1"]}, ("chief", 0), (1, True)),
        (WORKERS | {"chief": ["c:1"], "ps": ["d:1"]}, ("worker", 0), (1, False)),
        (WORKERS | {"evaluator": ["e:1"]}, ("evaluator", 0), (1, False)),
    ],
)
def test_only_workers_without_parameter_servers_train_in_step(
    monkeypatch: pytest.MonkeyPatch,
    cluster: dict[str, list[str]],
    task: tuple[str, int],
    expected: tuple[int, bool],
) -> None:
    where = {"cluster": cluster, "task": {"type": task[0], "index": task[1]}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(where))
    found = place()
    assert found is not None and (found.workers, found.is_chief) == expected
