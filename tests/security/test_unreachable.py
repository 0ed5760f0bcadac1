"""A run with a private network is reachable only by its own tasks."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest
from outside import addresses, reached, reaches_abstract
from users import User
from waiting import until, until_gone

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


def serving(user: User, network: str) -> tuple[Path, int]:
    """A run whose worker:1 has reached worker:0, and the port where that listens."""
    user.script("servers.py", LOOKS + SERVERS)
    run = user.detached("-n", "2", "--network", network, "--", "servers.py")
    user.until_logged(run, "reached it", "worker-1")
    return run, int(user.until_logged(run, "listens at").split()[-1])


def test_private_run_is_unreachable_from_outside(user: User) -> None:
    """Its tasks have their user and no new capabilities."""
    run, port = serving(user, "private")
    assert reached(port) == []
    assert not reaches_abstract(run.name)
    seen = json.loads(user.until_logged(run, "{").splitlines()[0])
    assert seen["interfaces"] == ["lo"]
    assert seen["net"] != str(Path("/proc/self/ns/net").readlink())
    assert set(seen["uids"]) == {user.uid}
    if user.uid != 0:
        assert (seen["permitted"], seen["effective"], seen["bounding"]) == (0, 0, 0)
    assert (run / "checkpoints/written").stat().st_uid == user.uid


def test_run_on_the_host_network_is_reachable(ordinary_user: User) -> None:
    run, port = serving(ordinary_user, "host")
    assert reached(port) == addresses()
    assert reaches_abstract(run.name)


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


def test_root_without_network_capability_gains_nothing(state_dir: Path) -> None:
    """As in most containers: it takes a user namespace then, which would bring all capabilities along."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv")
    with User(None, state_dir) as root:
        script = root.script("looks.py", LOOKS)
        before = ("setpriv", "--bounding-set=-sys_admin")
        done = root("up", "--no-prefix", "--network", "private", "--", script, before=before)
        seen = json.loads(done.stdout)
        assert seen["interfaces"] == ["lo"]
        assert not seen["permitted"] >> CAP_SYS_ADMIN & 1
        assert not seen["bounding"] >> CAP_SYS_ADMIN & 1


@pytest.mark.parametrize(
    "victims",
    [pytest.param(["agent"], marks=pytest.mark.slow), ["supervisor", "agent"]],
    ids="+".join,
)
def test_private_network_ends_with_its_run(ordinary_user: User, victims: list[str]) -> None:
    """Its daemonised grandchildren are found and ended from outside."""
    ordinary_user.script(
        "daemonises.py",
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        print('grandchild', os.getpid(), flush=True)\n"
        "        time.sleep(600)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "time.sleep(600)\n",
    )
    run = ordinary_user.detached("--network", "private", "--", "daemonises.py")
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
