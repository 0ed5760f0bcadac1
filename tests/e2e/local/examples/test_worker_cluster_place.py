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


def test_without_tf_config_there_is_one_worker() -> None:
    place = read_place({})
    assert (place.task, place.workers, place.is_chief, place.peers) == ("worker:0", 1, True, ())


def test_worker_zero_is_the_chief() -> None:
    cluster = {"worker": ["a:1", "b:2", "c:3"]}
    chief = read_place(config(cluster, {"type": "worker", "index": 0}))
    last = read_place(config(cluster, {"type": "worker", "index": 2}))
    assert (chief.is_chief, chief.peers) == (True, ("b:2", "c:3"))
    assert (last.is_chief, last.rank, last.workers, last.peers) == (False, 2, 3, ("a:1", "b:2"))


def test_chief_task_ranks_before_worker_zero() -> None:
    cluster = {"chief": ["a:1"], "worker": ["b:2", "c:3"]}
    assert read_place(config(cluster, {"type": "chief", "index": 0})) == Place(
        "chief:0", 0, ("a:1", "b:2", "c:3"), has_own_chief=True
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


SERVED = {"chief": ["a:1"], "worker": ["b:2", "c:3"], "ps": ["d:4", "e:5"]}


@pytest.mark.parametrize(
    ("role", "index", "rank"),
    [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2), ("ps", 0, 3), ("ps", 1, 4), ("evaluator", 0, 5)],
)
def test_each_role_has_a_rank_and_only_the_chief_is_chief(role: str, index: int, rank: int) -> None:
    place = read_place(config(SERVED, {"type": role, "index": index}))
    assert (place.task, place.role, place.rank) == (f"{role}:{index}", role, rank)
    assert place.is_chief is (role == "chief")
    assert (place.workers, place.servers) == (3, ("d:4", "e:5"))


def test_evaluator_need_not_be_listed_in_its_cluster() -> None:
    for cluster in ({"worker": ["a:1", "b:2"]}, {"worker": ["a:1", "b:2"], "evaluator": ["c:3"]}, {}):
        place = read_place(config(cluster, {"type": "evaluator", "index": 0}))
        assert (place.role, place.is_chief) == ("evaluator", False)
        check_place(place, "multi-worker-mirrored")


def test_evaluator_that_cannot_read_the_checkpoints_is_refused() -> None:
    with pytest.raises(ClusterError, match="leave the evaluator out"):
        check_place(place_in({"worker": ["a:1"]}, "evaluator"), "dtensor")


def place_in(cluster: object, role: str) -> Place:
    return read_place(config(cluster, {"type": role, "index": 0}))


@pytest.mark.parametrize("role", ["chief", "worker", "ps", "evaluator"])
def test_parameter_server_accepts_all_roles(role: str) -> None:
    check_place(place_in(SERVED, role), "parameter-server")


@pytest.mark.parametrize(
    ("cluster", "strategy", "says"),
    [
        (SERVED, "multi-worker-mirrored", "multi-worker-mirrored takes no parameter servers"),
        (SERVED, "mirrored", "mirrored takes no parameter servers"),
        ({"worker": ["a:1", "b:2"]}, "parameter-server", "has no parameter server:"),
        ({"worker": ["a:1"], "ps": ["b:2"]}, "parameter-server", "has no chief:"),
        (
            {"chief": ["a:1"], "worker": [], "ps": ["b:2"]},
            "parameter-server",
            "has no worker besides the chief:",
        ),
        ({"worker": ["a:1", "b:2"]}, "one-device", "one-device is one process"),
    ],
)
def test_role_that_a_strategy_cannot_use_is_refused(
    cluster: dict[str, list[str]], strategy: str, says: str
) -> None:
    for role in cluster:
        if cluster[role]:
            with pytest.raises(ClusterError, match=says):
                check_place(place_in(cluster, role), strategy)


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
