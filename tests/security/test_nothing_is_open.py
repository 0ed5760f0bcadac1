"""Files are private whatever the umask, and orch does not listen on any network."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
import threading
from pathlib import Path

import psutil
import pytest
from orch_command import Orch
from users import ORDINARY
from waiting import until

from orchestrator.links.control import ControlServer, StopOrder, ask
from orchestrator.store.directory import Directory

PRIVATE = {"directory": 0o700, "file": 0o600, "socket": 0o600}


def kind_and_mode(path: Path) -> tuple[str, int]:
    mode = path.lstat().st_mode
    kinds = ((stat.S_ISDIR, "directory"), (stat.S_ISREG, "file"), (stat.S_ISSOCK, "socket"))
    return next(kind for matches, kind in kinds if matches(mode)), stat.S_IMODE(mode)


def open_to_others(directory: Path) -> dict[str, int]:
    """The modes of the files that are not private."""
    found = {}
    for path in (directory, *directory.rglob("*")):
        try:
            if not path.is_symlink():
                found[path] = kind_and_mode(path)
        except FileNotFoundError:
            continue  # a live run writes documents to temporary files and renames them
    return {str(path): mode for path, (kind, mode) in found.items() if mode != PRIVATE[kind]}


def test_all_files_are_private_whatever_the_umask(orch: Orch) -> None:
    """A live run, and a run that failed with an exception."""
    orch.script(
        "train.py",
        "import sys, time\nprint('up', flush=True)\ntime.sleep(float(sys.argv[1]))\nraise ValueError",
    )
    (orch.directory / "up.sh").write_text('umask 0; exec "$@"')
    before = ("sh", str(orch.directory / "up.sh"))
    where = (
        "--log-dir",
        str(orch.directory / "new/logs"),
        "--checkpoint-dir",
        str(orch.directory / "new/kept"),
    )
    live = orch.start("up", *where, "--", "train.py", "600", before=before)
    live.until_out("up")
    failed = orch.start("up", "--name", "failed", "--", "train.py", "0", before=before)
    assert failed.finish().code == 1, failed.err
    assert len(orch.run_dirs()) == 2
    assert open_to_others(orch.state) == {}
    assert open_to_others(orch.directory / "new") == {}


def test_orch_listens_on_no_network(orch: Orch) -> None:
    """The agent binds ports for the tasks and never listens on them. The other processes have none."""
    orch.script("train.py", "import time\nprint('up', flush=True)\ntime.sleep(600)")
    up = orch.start("up", "-n", "2", "--", "train.py")
    up.until_out("up", 2)
    agent = orch.agent()
    inodes = sockets_of(agent)
    assert len(inodes & bound_inodes()) == 0, "the kernel lists only sockets that are connected"
    ports = {int(task["address"].rpartition(":")[2]) for task in orch.status()["tasks"]}
    assert {connection.laddr.port for connection in psutil.Process(agent).net_connections("inet")} <= ports
    for connection in psutil.Process(agent).net_connections("inet"):
        assert connection.status != psutil.CONN_LISTEN
    for pid in (orch.supervisor(), up.process.pid):
        assert psutil.Process(pid).net_connections("inet") == []


def sockets_of(pid: int | None) -> set[str]:
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(str(entry.readlink()))
        except FileNotFoundError:
            continue  # closed in the meantime
    return {link[8:-1] for link in links if link.startswith("socket:[")}


def bound_inodes() -> set[str]:
    tables = [Path("/proc/net") / name for name in ("tcp", "tcp6", "udp", "udp6", "raw")]
    there = [table for table in tables if table.exists()]  # some are missing without IPv6
    return {line.split()[9] for table in there for line in table.read_text().splitlines()[1:]}


def test_control_socket_of_another_user_is_not_trusted() -> None:
    """Its answer would be taken for the supervisor's."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become other users")
    # Not below the directory of the tests, which other users cannot enter.
    place = Path(tempfile.mkdtemp(prefix="orch-other-"))
    os.chown(place, ORDINARY, ORDINARY)
    path = place / "control"
    with socket.socket(socket.AF_UNIX) as listener:
        os.seteuid(ORDINARY)
        try:
            listener.bind(str(path))
            listener.listen()
            path.chmod(0o666)
        finally:
            os.seteuid(0)
        received = []

        def answer() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                with connection:
                    received.append(connection.recv(4096))
                    if received[-1]:
                        connection.sendall(b'{"ok": true}')

        server = threading.Thread(target=answer, daemon=True)
        server.start()
        try:
            answers = []
            for user in (ORDINARY + 1, ORDINARY):
                os.chown(place, user, user)
                os.seteuid(user)
                try:
                    answers.append(ask(path, StopOrder()))
                finally:
                    os.seteuid(0)
        finally:
            server.join(60)
            shutil.rmtree(place)
    assert answers == [None, {"ok": True}]
    assert received[0] == b""


def test_other_user_cannot_connect_to_the_control_socket(tmp_path: Path) -> None:
    """The directory of the socket is private, too; this is the second barrier."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    place = Path(tempfile.mkdtemp(prefix="orch-control-"))
    place.chmod(0o711)
    path = place / "control"
    with Directory.at(place) as directory:
        server = ControlServer(directory, path.name)
    try:
        path.chmod(0o666)
        with socket.socket(socket.AF_UNIX) as client:
            os.seteuid(ORDINARY)
            try:
                client.connect(str(path))
            finally:
                os.seteuid(0)
            assert server.accept() is None
            client.settimeout(60)
            assert client.recv(1) == b""
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            connection = until(server.accept)
            connection.close()
    finally:
        server.close()
        shutil.rmtree(place)
