"""Files are private whatever the umask, and orch does not listen on any network."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from acting_as import needs_root
from orch_command import Orch, Started
from users import ORDINARY
from waiting import child_with, until

from orchestrator.links.control import ControlServer, ask
from orchestrator.links.orders import StopOrder
from orchestrator.store.directory import Directory

WITHOUT_UMASK = ("sh", "-c", 'umask 0; exec "$@"', "sh")


def open_to_others(directory: Path) -> dict[str, int]:
    """The modes of the files that are not private."""
    found = {}
    for path in (directory, *directory.rglob("*")):
        # A live run writes documents to temporary files and renames them.
        with suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if stat.S_IMODE(mode) != (0o700 if stat.S_ISDIR(mode) else 0o600) and not stat.S_ISLNK(mode):
                found[str(path)] = stat.S_IMODE(mode)
    return found


SCRIPT = "import sys, time\nprint('up', flush=True)\ntime.sleep(float(sys.argv[1]))\nraise ValueError"


@pytest.fixture(scope="module")
def live(shared_orch: Orch) -> Started:
    """A live run of two tasks, started with the umask 0."""
    shared_orch.script("train.py", SCRIPT)
    new = shared_orch.directory / "new"
    where = ("--log-dir", str(new / "logs"), "--checkpoint-dir", str(new / "kept"))
    up = shared_orch.start("up", "-n", "2", *where, "--", "train.py", "600", before=WITHOUT_UMASK)
    up.until_out("up", 2)
    return up


def test_all_files_are_private_whatever_the_umask(live: Started, shared_orch: Orch) -> None:
    """A live run, and a run that failed with an exception."""
    words = ("up", "--name", "failed", "--", "train.py", "0")
    failed = shared_orch.start(*words, before=WITHOUT_UMASK).finish()
    assert failed.code == 1, failed.err
    assert len(shared_orch.run_dirs()) == 2
    assert open_to_others(shared_orch.state) == {}
    assert open_to_others(shared_orch.directory / "new") == {}


def test_orch_listens_on_no_network(live: Started, shared_orch: Orch) -> None:
    """The agent binds ports for the tasks and never listens on them. The other processes have none."""
    live_run = shared_orch.run_dirs()[0]
    supervisor = shared_orch.record(live_run)["supervisor_pid"]
    agent = child_with(supervisor, "worker.agent.agent")
    assert agent is not None
    assert not sockets_of(agent) & bound_inodes(), "the kernel lists only sockets that are connected"
    tasks = shared_orch.status(live_run.name)["tasks"]
    ports = {int(task["address"].rpartition(":")[2]) for task in tasks}
    connections = psutil.Process(agent).net_connections("inet")
    assert {connection.laddr.port for connection in connections} <= ports
    assert psutil.CONN_LISTEN not in {connection.status for connection in connections}
    for pid in (supervisor, live.process.pid):
        assert psutil.Process(pid).net_connections("inet") == []


def sockets_of(pid: int) -> set[str]:
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed in the meantime
            links.append(str(entry.readlink()))
    return {link[8:-1] for link in links if link.startswith("socket:[")}


def bound_inodes() -> set[str]:
    tables = [Path("/proc/net") / name for name in ("tcp", "tcp6", "udp", "udp6", "raw")]
    there = [table for table in tables if table.exists()]  # some are missing without IPv6
    return {line.split()[9] for table in there for line in table.read_text().splitlines()[1:]}


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users can enter, unlike that of the test."""
    directory = Path(tempfile.mkdtemp(prefix="orch-other-"))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory)


@contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """Have the kernel take this thread for that user within the block."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


@needs_root
def test_control_socket_of_another_user_is_not_trusted(place: Path) -> None:
    """Its answer would be taken for the supervisor's."""
    os.chown(place, ORDINARY, ORDINARY)
    path = place / "control"
    received = []
    with socket.socket(socket.AF_UNIX) as listener:
        with acting_as(ORDINARY):
            listener.bind(str(path))
            listener.listen()
            path.chmod(0o666)

        def answer() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                with connection:
                    received.append(connection.recv(4096))
                    if received[-1]:
                        connection.sendall(b'{"ok": true}')

        server = threading.Thread(target=answer, daemon=True)
        server.start()
        answers = []
        for user in (ORDINARY + 1, ORDINARY):
            os.chown(place, user, user)
            with acting_as(user):
                answers.append(ask(path, StopOrder()))
        server.join(60)
    assert answers == [None, {"ok": True}]
    assert received[0] == b""


@needs_root
def test_other_user_cannot_connect_to_the_control_socket(place: Path) -> None:
    """The directory of the socket is private, too; this is the second barrier."""
    path = place / "control"
    with Directory.at(place) as directory:
        server = ControlServer(directory, path.name)
    with closing(server):
        path.chmod(0o666)
        with socket.socket(socket.AF_UNIX) as client:
            with acting_as(ORDINARY):
                client.connect(str(path))
            assert server.accept() is None
            client.settimeout(60)
            assert client.recv(1) == b""
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            until(server.accept).close()
