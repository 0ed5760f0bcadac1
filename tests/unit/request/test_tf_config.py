"""TF_CONFIG: the documented form, and refusal of what TensorFlow cannot use."""

from __future__ import annotations

import json

import pytest

from orchestrator.core.job.tf_config import ClusterSpec, TaskRef, TFConfig


def cluster(**addresses: list[str]) -> ClusterSpec:
    return ClusterSpec(addresses={role: tuple(those) for role, those in addresses.items()})


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("worker:1", "worker:1"),
        ("3", "worker:3"),
        ("chief", "chief:0"),
        ("ps:0", "ps:0"),
        ("evaluator", "evaluator:0"),
    ],
)
def test_task_is_read(text: str, name: str) -> None:
    assert str(TaskRef.parse(text)) == name


@pytest.mark.parametrize(
    "text", ["", "worker", "ps", "boss:0", "worker:", "worker:-1", "worker:1:2", "Worker:0", "-1", "²"]
)
def test_task_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a task|names a role"):
        TaskRef.parse(text)


def test_json_has_the_documented_form() -> None:
    config = TFConfig(
        cluster=cluster(worker=["127.0.0.1:1", "127.0.0.1:2"]), task=TaskRef(type="worker", index=1)
    )
    assert json.loads(config.to_json()) == {
        "cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]},
        "task": {"type": "worker", "index": 1},
    }


@pytest.mark.parametrize("address", ["[::1]:80", "node-3.cluster_x:65535", "10.0.0.1:1"])
def test_address_is_accepted(address: str) -> None:
    assert cluster(worker=[address]).addresses["worker"] == (address,)


@pytest.mark.parametrize(
    "address", ["", "host", ":80", "host:", "host:0", "host:65536", "ho st:80", "host:8o", "a:b:80", "-a:1"]
)
def test_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"is not host:port|port must be 1 to 65535"):
        cluster(worker=[address])


@pytest.mark.parametrize(
    ("addresses", "message"),
    [
        ({"worker": ["a:1", "a:1"]}, "a:1 is given twice: to worker:0 and worker:1"),
        ({"worker": ["a:1"], "ps": ["a:1"]}, "a:1 is given twice: to worker:0 and ps:0"),
        ({"worker": []}, "role worker has no address"),
        ({"chief": ["a:1", "a:2"]}, "at most one chief, not 2"),
        ({"evaluator": ["a:1", "a:2"]}, "at most one evaluator"),
        ({"boss": ["a:1"]}, "'boss' is not a task type"),
        ({}, "at least 1 item"),
    ],
)
def test_cluster_is_refused(addresses: dict[str, list[str]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cluster(**addresses)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (("worker", 2), "the cluster has only 2 of worker"),
        (("ps", 0), "the cluster does not have its role"),
    ],
)
def test_task_must_be_in_the_cluster(task: tuple[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TFConfig(cluster=cluster(worker=["a:1", "a:2"]), task=TaskRef(type=task[0], index=task[1]))
