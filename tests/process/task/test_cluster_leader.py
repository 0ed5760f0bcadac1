"""A task looks whether the leader of its cluster listens before TensorFlow connects to it."""

from __future__ import annotations

import socket

import pytest

from worker.bootstrap import cluster_facts
from worker.bootstrap.cluster_facts import await_listener


def held_port() -> socket.socket:
    """A port that refuses connections until its owner listens."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    return held


def test_wait_lasts_until_the_leader_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with held_port() as held:
        # The first attempt is refused.
        monkeypatch.setattr(cluster_facts.time, "sleep", lambda seconds: held.listen())
        await_listener(f"127.0.0.1:{held.getsockname()[1]}")
        held.settimeout(0)
        held.accept()[0].close()


@pytest.mark.parametrize("longest_s", [0.0, 0.05])
def test_wait_ends_without_an_error_if_no_leader_listens(
    monkeypatch: pytest.MonkeyPatch, longest_s: float
) -> None:
    monkeypatch.setattr(cluster_facts, "_LONGEST_WAIT_S", longest_s)
    with held_port() as held:
        await_listener(f"127.0.0.1:{held.getsockname()[1]}")
    await_listener("")
