"""Other users, other programs and forged files cannot do anything to kept processes."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from acting_as import needs_root
from users import ORDINARY
from waiting import lives, until_gone
from warm_command import ECHO, WarmOrch

from orchestrator.client.launch import load_request
from orchestrator.client.warm import choose_start
from orchestrator.client.warm_list import stop_holders, warm_rows
from orchestrator.links.control import listen_in
from orchestrator.links.kept import Holding, conditions, take_over
from orchestrator.links.supervisor_link import start_supervisor
from orchestrator.store.directory import Directory
from orchestrator.store.ownership import accept_owner, forget_accepted_owners
from orchestrator.store.runs.liveness import start_ticks
from orchestrator.store.runs.locks import Lock
from orchestrator.store.runs.paths import make_warm, warm_name
from orchestrator.store.runs.record import boot_id


@contextmanager
def forged(directory: Path, pid: int) -> Iterator[tuple[Directory, Holding]]:
    """The place of a directory, with the lock held by this process and a description that names another one."""
    ticks, now = start_ticks(pid) or 0, time.time()
    times = {"start_ticks": ticks, "since": now, "idle_s": 600.0, "until": now + 600.0}
    holding = Holding(directory=str(directory), conditions={}, pid=pid, boot_id=boot_id(), runs=1, **times)
    with make_warm() as every, every.make(warm_name(str(directory))) as place:
        lock = Lock.acquire_in(place, "lock")
        assert lock is not None
        try:
            place.write_atomically("holder.json", holding.model_dump_json())
            yield place, holding
        finally:
            lock.release()


@contextmanager
def listening(place: Directory, serve: Callable[[socket.socket], None], user: int = 0) -> Iterator[None]:
    """A process of `user` listens in place of the holder, and serves one connection."""
    with listen_in(place, "socket") as listener:
        listener.setblocking(True)
        if user:
            os.seteuid(user)
            listener.listen()
            os.seteuid(0)

        def accept() -> None:
            connection, _ = listener.accept()
            # The client may have closed it before it has read the line.
            with connection, suppress(ConnectionError):
                serve(connection)

        server = threading.Thread(target=accept)
        server.start()
        yield
        server.join()
    place.unlink("socket")


@needs_root
def test_never_with_hosts_or_files_of_another_user(tmp_path: Path) -> None:
    for hosts, said in (
        ({"hosts": "elsewhere:1"}, "the run's tasks are on other hosts"),
        ({}, "the state directory belongs to"),
    ):
        up = load_request(1, ["true"], tmp_path, hosts)
        # With --watch it needs no terminal.
        up = replace(up, display=replace(up.display, warm_s=600.0, watch="*.yaml"))
        try:
            if not hosts:
                accept_owner(ORDINARY)
            with start_supervisor() as early:
                start = choose_start(up, early)
        finally:
            forget_accepted_owners()
        assert start.warm is None and said in start.notes[0]


def test_holder_that_leaves_after_its_greeting(warm: WarmOrch) -> None:
    with forged(warm.orch.directory, os.getpid()) as (place, holding):
        same = holding.model_copy(update={"conditions": conditions(str(warm.orch.directory))})

        def greet(connection: socket.socket) -> None:
            connection.sendall(same.model_dump_json().encode() + b"\n")
            connection.recv(1)

        with listening(place, greet):
            done = warm("-v", "up", *ECHO)
    assert "warm start: 1 run before" in done.err
    assert (done.code, done.lines) == (0, ["worker:0 | said"])


@needs_root
@pytest.mark.parametrize("user", [ORDINARY, 0])
def test_socket_of_another_user_is_not_used(tmp_path: Path, user: int) -> None:
    """The kernel notes the user of the process that listens."""
    received: list[bytes] = []
    with forged(tmp_path, os.getpid()) as (place, holding):

        def serve(connection: socket.socket) -> None:
            connection.sendall(holding.model_dump_json().encode() + b"\n")
            if data := connection.recv(1):
                received.append(data)

        with listening(place, serve, user):
            found = take_over(str(tmp_path))
            if found is not None:
                found[0].close()
    assert (found is None) == (user == ORDINARY)
    assert received == []


def test_holder_of_another_version_is_dismissed(tmp_path: Path) -> None:
    with forged(tmp_path, os.getpid()) as (place, _):
        with listening(place, lambda connection: connection.sendall(b'{"schema_version": 99}\n')):
            assert take_over(str(tmp_path)) is None
        assert not place.exists("holder.json")


def test_process_that_a_forged_description_names_is_not_killed(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        with forged(tmp_path, other.pid):
            assert [row.pid for row in stop_holders(patience_s=0.01)] == [other.pid]
        assert lives(other.pid)
        other.kill()


def test_links_in_the_place_of_holders_are_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    for name in ("lock", "holder.json", "socket"):
        (elsewhere / name).touch(mode=0o600)
    with make_warm() as every:
        every.link_to(warm_name(str(tmp_path)), elsewhere)
        with every.make("a" * 16) as place:
            place.link_to("lock", elsewhere / "lock")
    assert take_over(str(tmp_path)) is None and warm_rows() == []
    assert len([*elsewhere.iterdir()]) == 3


def test_client_without_a_request_does_not_end_the_holder(warm: WarmOrch) -> None:
    warm("up", "--warm", *ECHO)
    holder = warm.until_waiting()
    for sends in (b"", b"what\n", b"\0" * 100_000):
        found = take_over(str(warm.orch.directory))
        assert found is not None
        with found[0] as connection:
            connection.sendall(sends)
        assert warm("up", *ECHO).lines == ["worker:0 | said"], sends
        assert warm.supervisor() == holder.pid
        warm.until_waiting()
    # The files of a killed one are removed.
    holder.kill()
    until_gone(holder.pid)
    (place,) = warm.places
    assert (place / "holder.json").exists()
    assert "no processes are kept warm" in warm.orch.within("warm").err
    assert warm.places == []


@pytest.mark.slow
def test_client_that_asks_nothing_does_not_keep_the_holder(warm: WarmOrch) -> None:
    """The client is dropped after 10 s."""
    warm("up", "--warm", *ECHO)
    holder = warm.until_waiting()
    (place,) = warm.places
    before = (place / "socket").stat().st_ctime_ns
    found = take_over(str(warm.orch.directory))
    assert found is not None
    with found[0] as connection:
        assert connection.recv(1) == b""
        assert (place / "socket").stat().st_ctime_ns == before  # it has listened meanwhile
        assert warm("up", *ECHO).lines == ["worker:0 | said"]
    assert warm.supervisor() == holder.pid
