"""A task looks whether the leader of its cluster listens before TensorFlow connects to it."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import portpicker
import pytest
from tasks import LONGEST_RUN_S, running

from worker.bootstrap import cluster_facts
from worker.bootstrap.cluster_facts import await_listener

JOIN = """
import tensorflow as tf
tf.distribute.MultiWorkerMirroredStrategy()
"""


def held_port() -> socket.socket:
    """A port that refuses connections until its holder listens."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    return held


def test_it_waits_until_the_leader_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with held_port() as held:
        # The first attempt is refused.
        monkeypatch.setattr(cluster_facts.time, "sleep", lambda seconds: held.listen())
        await_listener(f"127.0.0.1:{held.getsockname()[1]}")
        held.settimeout(0)
        held.accept()[0].close()


@pytest.mark.parametrize("longest_s", [0.0, 0.05])
def test_it_leaves_a_leader_that_does_not_come_to_tensorflow(
    monkeypatch: pytest.MonkeyPatch, longest_s: float
) -> None:
    monkeypatch.setattr(cluster_facts, "_LONGEST_WAIT_S", longest_s)
    with held_port() as held:
        await_listener(f"127.0.0.1:{held.getsockname()[1]}")
    await_listener("")


def test_first_connection_to_the_leader_is_that_look(tmp_path: Path) -> None:
    with held_port() as leader:
        leader.listen()
        leader.settimeout(LONGEST_RUN_S)
        addresses = [f"127.0.0.1:{port}" for port in (leader.getsockname()[1], portpicker.pick_unused_port())]
        cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 1}}
        with running(tmp_path, ["-c", JOIN], env={"TF_CONFIG": json.dumps(cluster)}):
            first, _ = leader.accept()
            # gRPC would send its greeting.
            assert first.recv(1) == b""
            first.close()
