"""Reading this process's place in the cluster from TF_CONFIG."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.training.cluster import ClusterError, Place, read_place


def config(cluster: object, task: object) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def test_without_tf_config_there_is_one_worker() -> None:
    place = read_place({})
    assert (place.task, place.workers, place.is_chief, place.peers) == ("worker:0", 1, True, ())


def test_worker_zero_is_the_chief() -> None:
    cluster = {"worker": ["a:1", "b:2", "c:3"]}
    chief = read_place(config(cluster, {"type": "worker", "index": 0}))
    last = read_place(config(cluster, {"type": "worker", "index": 2}))
    assert (chief.is_chief, chief.peers) == (True, ("b:2", "c:3"))
    assert (last.is_chief, last.rank, last.workers, last.peers) == (False, 2, 3, ("a:1", "b:2"))


def test_a_chief_of_its_own_comes_before_worker_zero() -> None:
    cluster = {"chief": ["a:1"], "worker": ["b:2", "c:3"]}
    assert read_place(config(cluster, {"type": "chief", "index": 0})) == Place(
        "chief:0", 0, ("a:1", "b:2", "c:3")
    )
    worker = read_place(config(cluster, {"type": "worker", "index": 0}))
    assert (worker.rank, worker.is_chief, worker.peers) == (1, False, ("a:1", "c:3"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"cluster": 3}', "cannot be read"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "x"}}', "cannot be read"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}', "does not have"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": -1}}', "does not have"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "evaluator", "index": 0}}', "workers only"),
    ],
)
def test_what_cannot_train_is_said(text: str, says: str) -> None:
    with pytest.raises(ClusterError, match=says):
        read_place({"TF_CONFIG": text})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["cluster", "task", "worker", "type"]), inner)
    ),
)


@given(json_values)
def test_any_json_is_a_place_or_an_error(value: object) -> None:
    try:
        place = read_place({"TF_CONFIG": json.dumps(value)})
    except ClusterError:
        return
    assert 0 <= place.rank < place.workers
