"""Scripts with real TensorFlow that bring their own TF_CONFIG, or join no cluster at all."""

from __future__ import annotations

import socket

import pytest
from orch_command import Orch

_START_S = 180.0
pytestmark = pytest.mark.timeout(400)

# Sets TF_CONFIG itself and reads the index from the command line, as tutorials do.
OWN_CLUSTER = """
import json, os, sys
os.environ["TF_CONFIG"] = json.dumps({
    "cluster": {"worker": ["localhost:PORT", "localhost:OTHER"]},
    "task": {"type": "worker", "index": int(sys.argv[1])},
})
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
total = strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(lambda: tf.ones([])), axis=None)
print("sum", int(total), json.loads(os.environ["TF_CONFIG"])["task"]["index"], flush=True)
"""
ALONE = """
import tensorflow as tf
weight = tf.Variable(1.0)
with tf.GradientTape() as tape:
    loss = weight * weight
weight.assign_sub(tape.gradient(loss, weight))
print("trained", flush=True)
"""


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def own_cluster(orch: Orch) -> tuple[str, int]:
    """The script, and the port that it gives to worker 0."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("", 0))
        other.bind(("", 0))
        ports = one.getsockname()[1], other.getsockname()[1]
    text = OWN_CLUSTER.replace("PORT", str(ports[0])).replace("OTHER", str(ports[1]))
    return orch.script("train.py", text), ports[0]


def test_script_with_a_cluster_of_its_own_trains_in_orchs(orch: Orch) -> None:
    script, _ = own_cluster(orch)
    done = orch("up", "-n", "2", "--expect-cluster", "--", script, "0", timeout_s=_START_S)
    assert done.code == 0, done.out + done.err
    assert orch.methods() == {"fork"}
    for index in (0, 1):
        assert f"worker:{index} | sum 2 {index}\n" in done.out
        assert done.out.count(f"worker:{index} | orch: train.py line 3 sets TF_CONFIG; the task keeps ") == 1
    assert [task["joined"] for task in orch.result()["tasks"]] == [True, True]
    assert "never joined" not in done.err


@pytest.mark.slow
def test_wait_at_an_address_of_the_scripts_own_is_ended_and_named(orch: Orch) -> None:
    """Each task waits at a different port, since TensorFlow may refuse a second task with the same index."""
    script, port = own_cluster(orch)
    path = orch.directory / script
    mine = f'"localhost:" + ("{port}" if os.environ["ORCH_TASK"] == "worker:0" else "{_free_port()}")'
    path.write_text(path.read_text().replace(f'"localhost:{port}"', mine))
    # Long enough for the second task to start on a busy machine.
    limits = ("--start-timeout", "8s", "--timeout", "2m")
    done = orch("up", "-n", "2", "--script-tf-config", *limits, "--", script, "0", timeout_s=_START_S)
    assert done.code == 124, done.out + done.err
    cause = orch.result()["cause"]
    assert (cause["task"], cause["kind"]) == ("worker:0", "limit")
    assert cause["text"].startswith(
        f"not joined after 8s (--start-timeout): it waits for the others at localhost:{port},"
        " not at its own address 127.0.0.1:"
    )


def test_script_without_a_strategy_is_called_copies_and_refused_on_request(orch: Orch) -> None:
    script = orch.script("train.py", ALONE)
    done = orch("up", "-n", "2", "--expect-cluster", "--", script, timeout_s=_START_S)
    assert done.code == 1, done.out + done.err
    assert done.out.count("trained") == 2
    first, *_, last = done.err.splitlines()
    assert first == (
        "orch: train.py creates no strategy for several workers: 2 workers would train 2 independent copies;"
        " create a MultiWorkerMirroredStrategy, or use --workers 1"
    )
    said = "train.py never joined the cluster: 2 independent copies were trained."
    assert said in last and orch.result()["cause"]["kind"] == "not_distributed"
