"""Descriptors that a client passes to its tasks with the request for a run."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator import UsageError
from orchestrator.client import launch
from orchestrator.links.client_link import ClientLink, Descriptor, Lifetime, Request
from orchestrator.links.supervisor_link import start_supervisor

pytestmark = pytest.mark.usefixtures("no_leaked_descriptors")
# Each process adds a line about what it finds to every descriptor that it has, and waits for the other one's. 42 asks
# for a restart.
SCRIPT = """
import json, os, pathlib, time
found = json.loads(os.environ.get("ORCH_DESCRIPTORS", "{}"))
attempt = os.environ["ORCH_ATTEMPT"]
for name in sorted(found, reverse=True):
    os.write(found[name], f"{os.environ['ORCH_TASK']} attempt {attempt}: {sorted(found)}\\n".encode())
page = pathlib.Path("/proc/self/fd", str(found.get("all")))
while "all" in found and page.read_text().count(f"attempt {attempt}") < 2:
    time.sleep(0.005)
print(sorted(found))
raise SystemExit(42 if int(attempt) < int(os.environ["ATTEMPTS"]) else 0)
"""


@contextmanager
def pages(*names: str) -> Iterator[list[int]]:
    """Files in memory that are appended to."""
    opened = []
    try:
        for name in names:
            memory = os.memfd_create(name)
            opened.append(os.open(f"/proc/self/fd/{memory}", os.O_RDWR | os.O_APPEND))
            os.close(memory)
        yield opened
    finally:
        for fd in opened:
            os.close(fd)


def text(fd: int) -> list[str]:
    return sorted(Path(f"/proc/self/fd/{fd}").read_text().splitlines())


def test_every_attempt_of_one_run_gets_the_descriptors_of_its_task(tmp_path: Path) -> None:
    """Spawned and forked tasks. The next run of the supervisor does not have them."""
    (tmp_path / "script.py").write_text(SCRIPT)
    again: dict[str, object] = {"env": ("ATTEMPTS=2",), "on_failure": "restart"}
    with start_supervisor() as supervisor:
        for method, options in (("spawn", {"start": "spawn"}), ("fork", {"preload": ("json",)})):
            up = launch.load_request(2, ["script.py"], tmp_path, again | options)
            with pages("all", "one") as (to_all, to_one):
                given = {Descriptor(name="all"): to_all, Descriptor(name="one", task="worker:1"): to_one}
                run = launch.create_run(supervisor, up, Lifetime.SESSION, given)
                assert run.wait().attempts == 2
                run.view.refresh()
                assert {task.method for task in run.view.state.tasks.values()} == {method}
                ones = [f"worker:1 attempt {attempt}: ['all', 'one']" for attempt in (1, 2)]
                assert text(to_one) == ones
                assert text(to_all) == [f"worker:0 attempt {attempt}: ['all']" for attempt in (1, 2)] + ones
        up = launch.load_request(2, ["script.py"], tmp_path, {"env": ("ATTEMPTS=1",)})
        run = launch.create_run(supervisor, up, Lifetime.SESSION, {})
        run.wait()
        assert run.log("worker:1").read_text() == "[]\n"
        supervisor.close()
        supervisor.wait()


def test_descriptors_are_not_passed_to_another_host(tmp_path: Path) -> None:
    up = launch.load_request(None, ["true"], tmp_path, {"hosts": "a:2"})
    refused = pytest.raises(UsageError, match=r"cannot be passed to another host \(a\)")
    with start_supervisor() as supervisor, pages("all") as (opened,), refused:
        launch.create_run(supervisor, up, Lifetime.CLIENT, {Descriptor(name="all"): opened})


@pytest.mark.parametrize("passed", [0, 2])
def test_request_with_another_number_of_descriptors_is_not_served(passed: int, tmp_path: Path) -> None:
    spec = launch.load_request(1, ["true"], tmp_path, {}).spec
    request = Request(spec=spec, lifetime=Lifetime.CLIENT, descriptors=(Descriptor(name="all"),))
    ours, its = socket.socketpair()
    with ours, its, pages("a", "b") as opened:
        socket.send_fds(ours, [request.model_dump_json().encode() + b"\n"], opened[:passed])
        link = ClientLink(its)
        assert link.read_request() is None
        link.close()
