"""Descriptors that a client passes to its tasks with the request for a run."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator import Run, UsageError
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
START = {"spawn": {"start": "spawn"}, "fork": {"preload": ("json",)}}


@contextmanager
def pages(*names: str) -> Iterator[dict[str, int]]:
    """Files in memory that are appended to."""
    opened = {name: os.memfd_create(name) for name in names}
    try:
        for fd in opened.values():
            os.set_inheritable(fd, False)
            flags = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_APPEND)
            os.dup2(flags, fd, inheritable=False)
            os.close(flags)
        yield opened
    finally:
        for fd in opened.values():
            os.close(fd)


def text(fd: int) -> list[str]:
    return sorted(Path(f"/proc/self/fd/{fd}").read_text().splitlines())


@contextmanager
def run_with(descriptors: Mapping[Descriptor, int], directory: Path, **options: object) -> Iterator[Run]:
    (directory / "script.py").write_text(SCRIPT)
    up = launch.load_request(2, ["script.py"], directory, options)
    with start_supervisor() as supervisor:
        yield launch.create_run(supervisor, up, Lifetime.CLIENT, descriptors)
        supervisor.close()
        supervisor.wait()


@pytest.mark.parametrize("method", START)
def test_every_attempt_gets_the_descriptors_of_its_task(method: str, tmp_path: Path) -> None:
    with pages("all", "one") as opened:
        descriptors = {
            Descriptor(name="all"): opened["all"],
            Descriptor(name="one", task="worker:1"): opened["one"],
        }
        options = {"env": ("ATTEMPTS=2",), "on_failure": "restart", **START[method]}
        with run_with(descriptors, tmp_path, **options) as run:
            assert run.wait().attempts == 2
            run.view.refresh()
            assert {task.method for task in run.view.state.tasks.values()} == {method}
        assert text(opened["one"]) == [f"worker:1 attempt {attempt}: ['all', 'one']" for attempt in (1, 2)]
        assert text(opened["all"]) == [
            *(f"worker:0 attempt {attempt}: ['all']" for attempt in (1, 2)),
            *(f"worker:1 attempt {attempt}: ['all', 'one']" for attempt in (1, 2)),
        ]


def test_next_run_of_a_session_does_not_have_them(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    up = launch.load_request(2, ["script.py"], tmp_path, {"env": ("ATTEMPTS=1",)})
    with pages("all") as opened, start_supervisor() as supervisor:
        for descriptors in ({Descriptor(name="all"): opened["all"]}, {}):
            run = launch.create_run(supervisor, up, Lifetime.SESSION, descriptors)
            run.wait()
            assert run.log("worker:1").read_text() == f"{[each.name for each in descriptors]}\n"
        supervisor.close()
        supervisor.wait()


def test_descriptors_are_not_passed_to_another_host(tmp_path: Path) -> None:
    up = launch.load_request(None, ["true"], tmp_path, {"hosts": "a:2"})
    refused = pytest.raises(UsageError, match=r"cannot be passed to another host \(a\)")
    with start_supervisor() as supervisor, pages("all") as opened, refused:
        launch.create_run(supervisor, up, Lifetime.CLIENT, {Descriptor(name="all"): opened["all"]})


@pytest.mark.parametrize("passed", [0, 2])
def test_request_with_another_number_of_descriptors_is_not_served(passed: int, tmp_path: Path) -> None:
    spec = launch.load_request(1, ["true"], tmp_path, {}).spec
    request = Request(spec=spec, lifetime=Lifetime.CLIENT, descriptors=(Descriptor(name="all"),))
    ours, its = socket.socketpair()
    with ours, its, pages("a", "b") as opened:
        socket.send_fds(ours, [request.model_dump_json().encode() + b"\n"], list(opened.values())[:passed])
        link = ClientLink(its)
        assert link.read_request() is None
        link.close()
