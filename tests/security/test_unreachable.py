"""A run with a private network is reachable only by its own tasks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from users import User
from waiting import until, until_gone

from orchestrator import Session
from orchestrator.store.runs.locks import is_held

pytestmark = pytest.mark.usefixtures("private_network")
# worker:0 listens as TensorFlow's server does, on every interface, and at an abstract socket; worker:1 goes there.
SERVERS = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
host, port = config["cluster"]["worker"][0].split(":")
name = os.environ["ORCH_RUN_ID"]
if config["task"]["index"] == 0:
    if socket.has_dualstack_ipv6():
        both = {"family": socket.AF_INET6, "dualstack_ipv6": True}
    else:
        both = {}
    server = socket.create_server(("", int(port)), reuse_port=True, **both)
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\\0" + name)
    abstract.listen()
    print("listens at", port, flush=True)
    while True:
        server.accept()
while True:
    try:
        socket.create_connection(("localhost", int(port))).close()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect("\\0" + name)
        break
    except OSError:
        time.sleep(0.01)
print("reached it", flush=True)
time.sleep(600)
"""
CAP_SYS_ADMIN = 21
# Another run's task tries a port that is not its own.
INTRUDER = """
import socket, sys
for host in sys.argv[2:]:
    try:
        socket.create_connection((host, int(sys.argv[1])), 5).close()
        print("reached", host)
    except OSError:
        pass
print("tried all")
"""
LOOKS = """
import json, os, pathlib
fields = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if line.startswith("Cap"))
pathlib.Path(os.environ["ORCH_CHECKPOINT_DIR"], "written").write_text("x")
print(json.dumps({
    "uids": os.getresuid(), "effective": int(fields["CapEff"], 16), "permitted": int(fields["CapPrm"], 16),
    "bounding": int(fields["CapBnd"], 16), "net": os.readlink("/proc/self/ns/net"),
    "interfaces": [line.split(":")[0].strip() for line in open("/proc/self/net/dev").readlines()[2:]],
}), flush=True)
"""


def addresses() -> list[str]:
    """Every address of this machine except link-local ones."""
    entries = (entry for each in psutil.net_if_addrs().values() for entry in each)
    found = {entry.address for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)}
    return sorted({"127.0.0.1", "127.0.0.2", *(each for each in found if not each.startswith("fe80"))})


def reached(port: int) -> list[str]:
    """The addresses at which a connection to `port` succeeds."""
    return [
        each
        for each in addresses()
        if connects(socket.AF_INET6 if ":" in each else socket.AF_INET, (each, port))
    ]


def connects(family: socket.AddressFamily, address: tuple[str, int] | str) -> bool:
    with socket.socket(family) as client:
        client.settimeout(5)
        return client.connect_ex(address) == 0


def serving(user: User, network: str, before: tuple[str, ...] = ()) -> tuple[Path, int]:
    """A run whose worker:1 has reached worker:0, and the port where that listens."""
    words = ("-n", "2", "--network", network, "--", user.script("servers.py", LOOKS + SERVERS))
    run = user.detached(*words, before=before)
    user.until_logged(run, "reached it", "worker-1")
    return run, int(user.until_logged(run, "listens at").split()[-1])


# As in most containers: it takes a user namespace then, which would bring all capabilities along.
WITHOUT_ADMIN = ("setpriv", "--bounding-set=-sys_admin")


@pytest.mark.parametrize("before", [pytest.param((), marks=pytest.mark.slow), WITHOUT_ADMIN], ids=str)
def test_private_run_of_root_is_unreachable_from_outside(state_dir: Path, before: tuple[str, ...]) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv")
    with User(None, state_dir) as root:
        seen = unreachable(root, before)
        if before:
            assert not (seen["permitted"] | seen["bounding"]) >> CAP_SYS_ADMIN & 1


def test_private_run_is_unreachable_from_outside(ordinary_user: User) -> None:
    """Its tasks have their user and no new capabilities."""
    seen = unreachable(ordinary_user)
    assert (seen["permitted"], seen["effective"], seen["bounding"]) == (0, 0, 0)


def unreachable(user: User, before: tuple[str, ...] = ()) -> dict[str, Any]:
    """Check a run in a private network, and return what its task sees."""
    run, port = serving(user, "private", before)
    assert reached(port) == []
    assert not connects(socket.AF_UNIX, f"\0{run.name}")
    seen: dict[str, Any] = json.loads(user.until_logged(run, "{").splitlines()[0])
    assert seen["interfaces"] == ["lo"]
    assert seen["net"] != str(Path("/proc/self/ns/net").readlink())
    assert set(seen["uids"]) == {user.uid}
    assert (run / "checkpoints/written").stat().st_uid == user.uid
    return seen


def test_run_on_the_host_network_is_reachable(ordinary_user: User) -> None:
    run, port = serving(ordinary_user, "host")
    assert reached(port) == addresses()
    assert connects(socket.AF_UNIX, f"\0{run.name}")


@pytest.mark.slow
def test_private_runs_cannot_reach_each_other(ordinary_user: User) -> None:
    """The same program reaches a run on the host network."""
    intruder = ordinary_user.script("intruder.py", INTRUDER)
    for served, network, found in (
        ("private", "private", []),
        ("private", "host", []),
        ("host", "host", addresses()),
    ):
        run, port = serving(ordinary_user, served)
        words = ("--no-prefix", "--network", network, "--", intruder, str(port), *addresses())
        done = ordinary_user("up", *words)
        shown = [*(f"reached {address}" for address in found), "tried all"]
        assert done.stdout.splitlines() == shown, done.stderr
        ordinary_user("down", run.name)


DAEMONISES = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("grandchild", os.getpid(), flush=True)
    time.sleep(600)
time.sleep(600)
"""


@pytest.mark.parametrize(
    "victims",
    [pytest.param(["agent"], marks=pytest.mark.slow), ["supervisor", "agent"]],
    ids="+".join,
)
def test_private_network_ends_with_its_run(ordinary_user: User, victims: list[str]) -> None:
    """Its daemonised grandchildren are found and ended from outside."""
    script = ordinary_user.script("daemonises.py", DAEMONISES)
    run = ordinary_user.detached("--network", "private", "--", script)
    grandchild = int(ordinary_user.until_logged(run, "grandchild").split()[1])
    supervisor = json.loads((run / "run.json").read_text())["supervisor_pid"]
    agent = psutil.Process(ordinary_user.pid_of_first_task(run)).ppid()
    pids = {"supervisor": supervisor, "agent": agent}
    # Stopped first, so that neither can do anything about the other's end.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for victim in victims:
            os.kill(pids[victim], number)
    until(lambda: not is_held(run / "lock"))
    ordinary_user("down", run.name)
    until_gone(grandchild, agent, supervisor)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_cluster_of_tensorflow_is_reachable_on_the_host_network_only(ordinary_user: User) -> None:
    """Both train."""
    before: set[Path] = set()
    for network, found in (("private", []), ("host", addresses())):
        words = ("up", "-q", "--wait", "ready", "-n", "2", "--network", network, "--", "--epochs", "500")
        done = ordinary_user(*words)
        assert done.returncode == 0, done.stderr
        (run,) = set(ordinary_user.runs()) - before
        before.add(run)
        ordinary_user.until_logged(run, "epoch 1/")
        ports = [int(task["address"].rpartition(":")[2]) for task in ordinary_user.tasks(run)]
        assert {port: reached(port) for port in ports} == dict.fromkeys(ports, found)
        ordinary_user("down", run.name)


SAYS_NETWORK = "import os; print(os.readlink('/proc/self/ns/net'))"


def test_session_switches_between_networks(no_leaked_descriptors: None) -> None:
    host = str(Path("/proc/self/ns/net").readlink())
    seen = []
    with Session() as session:
        for network in ("host", "private", "private", "host"):
            command = [sys.executable, "-c", SAYS_NETWORK]
            with session.up(command=command, network=network) as run:
                run.wait()
                seen.append(until(lambda run=run: run.log("worker:0").read_text()).strip())  # type: ignore[misc]
    assert [network == host for network in seen] == [True, False, False, True]
    assert seen[1] == seen[2], "the agent was kept"
