"""TensorFlow's servers are reachable on the host network and unreachable in a private one; both train."""

from __future__ import annotations

import pytest
from outside import addresses, reached
from users import User

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("private_network")]


def ports_of_a_training_run(user: User, network: str) -> list[int]:
    done = user("up", "-q", "--wait", "ready", "-n", "2", "--network", network, "--", "--epochs", "500")
    assert done.returncode == 0, done.stderr
    (run,) = user.runs()
    user.until_logged(run, "epoch 1/")
    return [int(task["address"].rpartition(":")[2]) for task in user.tasks(run)]


def test_private_cluster_is_unreachable_from_outside(user: User) -> None:
    ports = ports_of_a_training_run(user, "private")
    assert {port: reached(port) for port in ports} == {port: [] for port in ports}


def test_cluster_on_the_host_network_is_reachable(ordinary_user: User) -> None:
    ports = ports_of_a_training_run(ordinary_user, "host")
    assert {port: reached(port) for port in ports} == {port: addresses() for port in ports}
