"""What a task starts with, and what the agent sees: the user's environment, hidden processes, the end of a stream."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from agent_driving import Driver, python
from namespaces import namespace

from orchestrator.links.agent_link import AgentLink
from worker.wire.messages import Exited, Hold, Run, Signal, Stop, TaskOrder, decode_order

LOOK = """
import json, os, resource, signal
lines = open("/proc/self/status").read().splitlines()
status = dict(line.split(":\\t", 1) for line in lines if ":\\t" in line)
print(json.dumps({
    "env": dict(os.environ),
    "cwd": os.getcwd(),
    "stdin": os.readlink("/proc/self/fd/0"),
    "fds": [int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")],
    "session": os.getsid(0) == os.getpid() == os.getpgid(0),
    "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    "umask": os.umask(0),
    "ignored": int(status["SigIgn"], 16),
    "blocked": int(status["SigBlk"], 16),
}))
"""

# Signals 32 and 33, which glibc keeps to itself: a process that posix_spawn started may find them ignored.
C_LIBRARYS_OWN = 0b11 << 31


@contextmanager
def odd_world() -> Iterator[None]:
    """A umask, a file limit and an ignored signal unlike anything orch would choose."""
    umask, files = os.umask(0o027), resource.getrlimit(resource.RLIMIT_NOFILE)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_NOFILE, (311, files[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, files)
    signal.signal(signal.SIGHUP, hangup)
    os.umask(umask)


def test_task_gets_the_users_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INHERITED", "yes")
    monkeypatch.setenv("REPLACED", "no")
    (tmp_path / "elsewhere").mkdir()
    env = {"REPLACED": "yes", "ADDED": "yes, ünïcode \udcff too"}
    with odd_world(), Driver(tmp_path) as agent:
        agent.start("a", python(LOOK), env, cwd=str(tmp_path / "elsewhere"))
        assert agent.wait_for(Exited).exit.exit_code == 0, agent.text("a")
        seen = json.loads(agent.text("a"))
    assert {"INHERITED": "yes", **env}.items() <= seen["env"].items()
    assert (seen["cwd"], seen["stdin"]) == (str(tmp_path / "elsewhere"), "/dev/null")
    assert (seen["session"], seen["files"][0], seen["umask"], seen["blocked"]) == (True, 311, 0o027, 0)
    # Python itself ignores SIGPIPE and, where there is one, SIGXFSZ.
    python_ignores = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
    assert not seen["ignored"] & ~python_ignores & ~C_LIBRARYS_OWN
    progress = int(seen["env"]["ORCH_PROGRESS_FD"])
    assert set(seen["fds"]) <= {0, 1, 2, progress}


def test_log_is_appended_and_private(agent: Driver) -> None:
    """A task without Python has default signals."""
    agent.log("a").write_text("before\n")
    agent.start("a", ["sh", "-c", "echo one; echo two >&2; echo three"])
    agent.start("b", ["grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"])
    for name in "ab":
        agent.wait_for(Exited, name)
    assert {int(line.split()[1], 16) & ~C_LIBRARYS_OWN for line in agent.text("b").splitlines()} == {0}
    assert agent.text("a") == "before\none\ntwo\nthree\n"
    assert stat.S_IMODE(agent.log("b").stat().st_mode) == 0o600


# -- the supervisor's end of a stream whose other end is gone: every order reports it


TRUE = TaskOrder("worker:0", ("true",), {}, "/", "/dev/null", None, False)


@pytest.fixture
def ends() -> Iterator[tuple[AgentLink, socket.socket]]:
    """The link, and the agent's end of its stream."""
    ours, its = socket.socketpair()
    with ours, its, closing(AgentLink(ours)) as link:
        yield link, its


def takes_another_run(link: AgentLink) -> bool:
    return link.serve(Run("run-2", 0.5, "/dev/null", None, {}, "host"))


@pytest.mark.parametrize("unread", [False, True], ids=["end-of-file", "reset"])
def test_gone_agent_is_noticed_and_every_order_to_it_fails(
    ends: tuple[AgentLink, socket.socket], unread: bool
) -> None:
    """The stream ends with an end of file, or with a reset if the agent has not read all messages."""
    link, agent = ends
    assert link.read() == ([], True)
    if unread:
        assert link.send(Stop(0.0))
    agent.close()
    if not unread:
        assert not takes_another_run(link)  # before its end is read
    assert link.read() == ([], False)
    orders = (Hold(1, 2, "reuse_port"), TRUE, Signal("worker:0", 10), Stop(1.0))
    assert [link.send(order) for order in orders] == [False] * 4
    assert not takes_another_run(link)


def test_live_agent_takes_a_run(ends: tuple[AgentLink, socket.socket]) -> None:
    link, agent = ends
    assert takes_another_run(link)
    assert decode_order(agent.recv(1 << 16)).run_id == "run-2"


def test_order_waits_for_room_and_blocks_nothing(ends: tuple[AgentLink, socket.socket]) -> None:
    """An agent reads nothing for a while. Orders are queued, and arrive complete and in order."""
    link, agent = ends
    env = {"FILLER": "x" * 100_000}
    names = [f"worker:{number}" for number in range(40)]
    for name in names:
        assert link.send(replace(TRUE, task=name, env=env))
    received = bytearray()
    while received.count(b"\n") < len(names):
        # The link is readable as soon as there is room for more.
        received += agent.recv(1 << 20)
        if select.select([link], [], [], 0)[0]:
            assert link.read() == ([], True)
    assert [decode_order(line).task for line in received.splitlines()] == names
    assert select.select([link], [], [], 0)[0] == []


# -- where /proc hides other users' processes (hidepid), what cannot be read counts as not there


_ROOT = Path(__file__).resolve().parents[3]
# New process and mount namespaces. Process 1 keeps capabilities that its children lose, so they cannot read it.
_PREPARE = (
    "mount -t proc -o hidepid=1,gid=65533 proc /proc"  # members of `gid` would see all: root is one of 0
)
_LOWLY = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")

_LOOKS = """
import json, os, subprocess, sys
from pathlib import Path
from orchestrator import Cluster
try: Path("/proc/1/stat").read_bytes(); hidden = False
except PermissionError: hidden = True
from orchestrator.store.runs.leftovers import end_leftovers
from orchestrator.store.runs.paths import RunPaths
from worker.agent.processes import all_processes, descendants, read_stat, tree_states
def started(**marks):
    # Once it has spoken its exec is over: before, its environment may still read as empty.
    child = subprocess.Popen(
        ["sh", "-c", "echo up; read nothing"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **marks},
    )
    child.stdout.readline()
    return child
child = started()
stray = started(ORCH_RUN_ID="run-1", ORCH_RUN_DIR="/state/run-1")
seen = all_processes()
below = sorted(stat.pid for stat in descendants(os.getpid(), seen))
ended_strays = end_leftovers(RunPaths(Path("/state/run-1"))).ended
stray.wait(60)
child_lived = child.poll() is None
ended_below = end_leftovers(RunPaths(Path("/state/another")), ancestor_pid=os.getpid()).ended
with Cluster(workers=2, command=[sys.executable, "-I", "-S", "-c", "print(1)"]) as run:
    outcome = run.wait().outcome
print(json.dumps({
    "hidden": hidden, "first": read_stat(1) is not None, "below": below == sorted([child.pid, stray.pid]),
    "state_of_hidden": tree_states([1], seen)[1], "ended_strays": ended_strays,
    "child_lived": child_lived, "ended_below": ended_below, "outcome": outcome,
}))
"""


def test_hidden_processes_are_skipped_and_a_run_succeeds_among_them(tmp_path: Path) -> None:
    done = subprocess.run(
        [*namespace(_PREPARE, "setpriv"), *_LOWLY, sys.executable, "-c", _LOOKS],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "hidden": True,
        "first": False,
        "below": True,
        "state_of_hidden": "X",
        "ended_strays": 1,
        "child_lived": True,
        "ended_below": 1,
        "outcome": "succeeded",
    }
