"""TensorFlow's own servers: open to everybody on the host's network, to nobody in a private one; both train."""

from __future__ import annotations

import pytest
from outside import addresses, reached
from people import Person

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("private_network")]


def ports_of_a_training_run(person: Person, network: str) -> list[int]:
    done = person("up", "-q", "--wait", "ready", "-n", "2", "--network", network, "--", "--epochs", "500")
    assert done.returncode == 0, done.stderr
    (run,) = person.runs()
    person.until_logged(run, "epoch 1/")
    return [int(task["address"].rpartition(":")[2]) for task in person.tasks(run)]


def test_nobody_outside_reaches_a_private_cluster(person: Person) -> None:
    ports = ports_of_a_training_run(person, "private")
    assert {port: reached(port) for port in ports} == {port: [] for port in ports}


def test_everybody_reaches_a_cluster_on_the_hosts_network(anybody: Person) -> None:
    ports = ports_of_a_training_run(anybody, "host")
    assert {port: reached(port) for port in ports} == {port: addresses() for port in ports}
