"""Runs on three pretend machines with a real ssh: outcomes as on one machine, and nothing is left on any of them."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hosts_run import HOSTS, LOST, HostsRun, cut_host, is_whole, kill_victim
from testbed import Testbed
from waiting import PATIENCE_S, until

from orchestrator.core.lifecycle.restarts import RAN_AT_LEAST_S
from orchestrator.host.headroom import files_with_hosts


def or_slow(first: Any, *others: Any) -> list[Any]:
    return [first, *(pytest.param(each, marks=pytest.mark.slow) for each in others)]


# The largest latency of a host in one direction. A way from n0 and back takes up to 200 ms.
MOST_LATENCY_S = 0.1
# How a peer ends when it has lost the first one.
ENDS = ("own", "lost", "exit")
# The first one listens, waits until all others are connected, and raises; its streams end, and then it may take long to
# exit. A peer reads until the end of the stream.
FAIL = """
import atexit, json, os, pathlib, socket, sys, time
here, victim, exit_s, *ends = sys.argv[1:]
here, index = pathlib.Path(here), json.loads(os.environ["TF_CONFIG"])["task"]["index"]
addresses = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
place = here / "place"
if index == int(victim):
    server = socket.create_server((addresses[index].rpartition(":")[0], 0))
    (here / "new").write_text("{} {}".format(*server.getsockname()))
    (here / "new").rename(place)
    peers = [server.accept()[0] for _ in addresses[1:]]
    if float(exit_s):
        atexit.register(time.sleep, float(exit_s))
        atexit.register(lambda: [peer.close() for peer in peers])
    raise ValueError("the first failure")
while not place.exists():
    time.sleep(0.01)
host, port = place.read_text().split()
stream = socket.create_connection((host, int(port)))
try:
    stream.recv(1)
except ConnectionError:
    pass
match ends[index]:
    case "own":
        raise RuntimeError("no step without a peer")
    case "lost":
        raise ConnectionResetError(104, "Connection reset by peer")
sys.exit(1)
"""


Draw = tuple[int, tuple[str, ...], tuple[float, ...], float]


def at_random(seed: int) -> Draw:
    chance = random.Random(seed)
    ends = tuple(chance.choice(ENDS) for _ in HOSTS)
    return chance.randrange(len(HOSTS)), ends, tuple(chance.uniform(0, MOST_LATENCY_S) for _ in HOSTS), 0.0


# The worker that fails first, how the others end, the latencies of the machines in seconds, and how much longer the
# first one runs after its peers have lost it.
DRAWS = or_slow(
    # The report of the first failure arrives last.
    (0, ("", "own", "lost"), (0.1, 0.0, 0.0), 0.0),
    # The exits of the peers are reported before its own, which the teardown then brings about.
    (2, ("own", "exit", ""), (0.02,) * 3, 1.0),
    (0, ("", "lost", "own"), (0.0,) * 3, 1.0),
    *map(at_random, range(10)),
)


@pytest.fixture
def run(up: Any, counting: tuple[str, ...]) -> HostsRun:
    """A run of a task on each host, which prints lines."""
    started: HostsRun = up("--workers", "3", *counting)
    started.until_event("task_started", 3)
    return started


def test_each_host_runs_its_tasks_and_logs_come_here(
    up: Any, machines: Testbed, project: Path, counting: tuple[str, ...]
) -> None:
    run = up("--workers", "4", *counting, hosts="n1:2,n2,n3")
    run.until_event("task_started", 4)
    counts = {name: sum("count.py" in line for line in machines[name].command_lines()) for name in HOSTS}
    (project / "end").touch()
    result = run.finish()
    assert counts == {"n1": 2, "n2": 1, "n3": 1}
    assert result["outcome"] == "succeeded"
    assert [task["host"] for task in result["tasks"]] == ["n1", "n1", "n2", "n3"]
    assert all(is_whole(run.log(f"worker:{index}")) for index in range(4))


@pytest.mark.slow
def test_limit_on_open_files_that_is_just_enough(up: Any, machines: Testbed) -> None:
    few, enough = (("prlimit", f"--nofile={files_with_hosts(3, 3) - less}") for less in (1, 0))
    run = up("--workers", "3", "--", "true", before=few)
    assert run.process.wait(PATIENCE_S) == 2
    assert "and 3 hosts with 3 tasks need 50; raise it to 50 at least" in run.text
    assert not (machines["n0"].state / "runs").exists()
    assert up("--workers", "3", "--", "true", before=enough).finish()["outcome"] == "succeeded"


@pytest.mark.parametrize("cut", or_slow("both", "to the host", "from the host"))
def test_a_short_cut_loses_nothing_and_after_a_long_one_the_host_ends_its_tasks_itself(
    run: HostsRun, machines: Testbed, cut: str
) -> None:
    """TCP sends again what the network has lost."""
    cut_host(machines, cut)
    time.sleep(6.0)
    machines.heal()
    # On a busy machine others may be silent, too.
    run.until_event("host_silent", host="n1")
    run.until_event("host_back", host="n1")
    before = len(run.log("worker:0"))
    until(lambda: len(run.log("worker:0")) > before)
    assert all(is_whole(run.log(f"worker:{index}"), has_ended=False) for index in range(3))
    assert run.process.poll() is None and not run.events("host_lost")

    cut_host(machines, cut)
    result = run.finish()
    assert run.process.returncode == LOST
    assert (result["cause"]["kind"], result["cause"]["host"]) == ("host", "n1")
    # The network is still cut: it was the host that has ended its tasks.
    for name in HOSTS:
        until(lambda name=name: not machines[name].programs())


@pytest.mark.parametrize("victim", or_slow("orch", "agent", "ssh", "agent and guard"))
def test_nothing_is_left_after_a_kill(run: HostsRun, up: Any, machines: Testbed, victim: str) -> None:
    kill_victim(machines, victim)
    if victim != "orch":
        result = run.finish()
        assert result["cause"]["kind"] == "host"
        assert victim == "ssh" or result["cause"]["host"] == "n1"
    for machine in machines.machines.values():
        until(lambda machine=machine: not machine.programs())
    if victim == "agent and guard":
        # The next start there removes the directory.
        run.forget()
        assert up("--workers", "3", "--", "true").finish()["outcome"] == "succeeded"


@pytest.mark.slow
def test_run_continues_after_its_ssh_was_killed(
    up: Any, machines: Testbed, project: Path, counting: tuple[str, ...]
) -> None:
    run = up("--workers", "3", "--max-restarts", "1", "--checkpoint-dir", str(project / "ckpt"), *counting)
    run.until_event("task_started", 3)
    time.sleep(RAN_AT_LEAST_S)
    kill_victim(machines, "ssh")
    run.until_event("task_started", 6)
    (project / "end").touch()
    assert run.finish()["outcome"] == "succeeded"
    assert "ssh was ended by signal 9 on this machine" in run.text


@pytest.mark.parametrize("draw", DRAWS, ids=str)
def test_first_failure_is_named(up: Any, machines: Testbed, project: Path, draw: Draw) -> None:
    """However the peers end, with different clocks and latencies of the hosts."""
    victim, ends, latencies, exit_s = draw
    (project / "fail.py").write_text(FAIL)
    for name, latency_s in zip(HOSTS, latencies, strict=True):
        machines.delay(name, latency_s)
    words = (sys.executable, "fail.py", str(project), str(victim), str(exit_s), *ends)
    run = up("--workers", "3", "--link-timeout", "60s", "--", *words)
    assert run.finish()["cause"]["task"] == f"worker:{victim}", run.text
    assert "the first failure" in run.message_text
