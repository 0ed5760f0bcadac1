"""Reads this process's place in the cluster from TF_CONFIG, and checks it against the strategy."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.training.options.checks import check_place
from worker.training.process.environment import ClusterError, Place, read_place


def config(cluster: object, task: object) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


SERVED = {"chief": ["a:1"], "worker": ["b:2", "c:3"], "ps": ["d:4", "e:5"]}
WORKERS = {"worker": ["a:1", "b:2", "c:3"]}


@pytest.mark.parametrize(
    ("cluster", "role", "index", "place"),
    [
        (WORKERS, "worker", 0, Place("worker:0", 0, ("a:1", "b:2", "c:3"))),
        (WORKERS, "worker", 2, Place("worker:2", 2, ("a:1", "b:2", "c:3"))),
        # An evaluator need not be listed in its cluster.
        ({}, "evaluator", 0, Place("evaluator:0", 1)),
        ({"worker": ["a:1"]}, "evaluator", 0, Place("evaluator:0", 1, ("a:1",))),
        ({"worker": ["a:1"], "evaluator": ["c:3"]}, "evaluator", 0, Place("evaluator:0", 1, ("a:1",))),
        *(
            (SERVED, role, index, Place(f"{role}:{index}", rank, ("a:1", "b:2", "c:3"), ("d:4", "e:5"), True))
            for rank, (role, index) in enumerate(
                [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0), ("ps", 1), ("evaluator", 0)]
            )
        ),
    ],
)
def test_place_of_a_task(cluster: dict[str, list[str]], role: str, index: int, place: Place) -> None:
    assert read_place(config(cluster, {"type": role, "index": index})) == place


def test_peers_are_the_other_workers_and_the_first_of_them_is_the_chief() -> None:
    places = [read_place(config(WORKERS, {"type": "worker", "index": index})) for index in range(3)]
    assert [place.peers for place in places] == [("b:2", "c:3"), ("a:1", "c:3"), ("a:1", "b:2")]
    assert [place.is_chief for place in places] == [True, False, False]
    alone = read_place({})
    assert (alone.task, alone.workers, alone.is_chief, alone.peers) == ("worker:0", 1, True, ())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"cluster": 3}', "cannot be read"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "x"}}', "cannot be read"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}', "does not have"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": -1}}', "does not have"),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "master", "index": 0}}',
            "knows chief, worker, ps",
        ),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}}', "does not have"),
    ],
)
def test_invalid_tf_config_is_an_error(text: str, says: str) -> None:
    with pytest.raises(ClusterError, match=says):
        read_place({"TF_CONFIG": text})


def check(cluster: object, role: str, strategy: str) -> None:
    check_place(read_place(config(cluster, {"type": role, "index": 0})), strategy)


def test_roles_that_a_strategy_can_use_are_accepted() -> None:
    for role in ("chief", "worker", "ps", "evaluator"):
        check(SERVED, role, "parameter-server")
    check(WORKERS, "evaluator", "multi-worker-mirrored")
    with pytest.raises(ClusterError, match="leave the evaluator out"):
        check(WORKERS, "evaluator", "dtensor")


@pytest.mark.parametrize(
    ("cluster", "strategy", "says"),
    [
        (SERVED, "multi-worker-mirrored", "multi-worker-mirrored takes no parameter servers"),
        (SERVED, "mirrored", "mirrored takes no parameter servers"),
        ({"worker": ["a:1", "b:2"]}, "parameter-server", "has no parameter server:"),
        ({"worker": ["a:1"], "ps": ["b:2"]}, "parameter-server", "has no chief:"),
        ({"chief": ["a:1"], "ps": ["b:2"]}, "parameter-server", "has no worker besides the chief:"),
        ({"worker": ["a:1", "b:2"]}, "one-device", "one-device is one process"),
    ],
)
def test_role_that_a_strategy_cannot_use_is_refused(
    cluster: dict[str, list[str]], strategy: str, says: str
) -> None:
    for role in cluster:
        with pytest.raises(ClusterError, match=says):
            check(cluster, role, strategy)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["cluster", "task", "worker", "type"]), inner)
    ),
)


@given(json_values)
def test_any_json_gives_a_place_or_an_error(value: object) -> None:
    try:
        place = read_place({"TF_CONFIG": json.dumps(value)})
    except ClusterError:
        return
    assert place.role in ("ps", "evaluator") or 0 <= place.rank < place.workers
