"""A session with interrupts, several threads, forked processes and changed process attributes."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from waiting import until, until_gone

from orchestrator import Session, UsageError
from orchestrator.client import api
from orchestrator.client.api import Run

SLEEPS = ["sleep", "600"]
pytestmark = pytest.mark.usefixtures("no_leaked_descriptors")


def supervisor_of(run: Run) -> psutil.Process:
    return psutil.Process(run.view.record.supervisor_pid)


def waits_for_an_answer(thread: int) -> bool:
    """Whether that thread has sent its request and is reading the answer."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code.co_name == "_read_answer" and frame.f_code.co_filename.endswith("supervisor_link.py"):
            return True
        frame = frame.f_back
    return False


@pytest.fixture
def interrupts() -> Iterator[signal.Signals]:
    """A signal that raises KeyboardInterrupt."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


def test_interrupted_creation_does_not_affect_the_next_run(interrupts: signal.Signals) -> None:
    with Session() as session:
        with session.up(command=["true"]) as run:
            run.wait()
        supervisor = supervisor_of(run)
        supervisor.suspend()
        main = threading.get_ident()

        def press() -> None:
            try:
                until(lambda: waits_for_an_answer(main))
            finally:
                signal.pthread_kill(main, interrupts)
                supervisor.resume()

        pressing = threading.Thread(target=press)
        pressing.start()
        try:
            with pytest.raises(KeyboardInterrupt), session.up(command=SLEEPS, name="interrupted"):
                pass
        finally:
            pressing.join()
        until_gone(supervisor.pid)
        assert not any(run.view.is_live for run in api.ls())
        for name in ("interrupted", "next"):
            with session.up(command=["true"], name=name) as run:
                assert run.name == name
                assert run.wait().succeeded


def test_second_thread_gets_an_error_while_a_run_is_created() -> None:
    outcomes: list[str] = []
    with Session() as session:
        with session.up(command=["true"]) as run:
            run.wait()

        def first() -> None:
            with session.up(command=["true"], name="first") as run:
                outcomes.append(f"{run.name} {run.wait(check=False).outcome}")

        supervisor = supervisor_of(run)
        supervisor.suspend()
        asking = threading.Thread(target=first)
        asking.start()
        try:
            until(lambda: waits_for_an_answer(asking.ident or 0))
            with pytest.raises(UsageError, match="another thread"), session.up(command=["true"]):
                pass
        finally:
            supervisor.resume()
            asking.join()
        assert outcomes == ["first succeeded"]
        with session.up(command=["true"], name="second") as run:
            assert run.wait().succeeded


@pytest.mark.parametrize(
    "opened",
    ["orchestrator.Cluster(command=SLEEPS)", "session.up(command=SLEEPS)"],
)
def test_forked_process_that_leaves_the_block_does_not_stop_the_run(opened: str, tmp_path: Path) -> None:
    program = f"""
import orchestrator, os, sys
SLEEPS = ["sleep", "600"]
with orchestrator.Session() as session:
    with {opened} as run:
        run.wait_ready()
        child = os.fork()
        if child == 0:
            sys.exit(7)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status, run.status().run.state)
    print(run.wait(check=False).outcome)
    with session.up(command=["true"]) as run:
        print(run.wait().outcome)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout.splitlines(), done.stderr) == (["7 running", "stopped", "succeeded"], "")


def test_forked_process_cannot_use_the_session(tmp_path: Path) -> None:
    program = """
import orchestrator, os, sys
with orchestrator.Session() as session:
    with session.up(command=["true"]) as run:
        run.wait()
    kept = run.view.record.supervisor_pid
    child = os.fork()
    if child == 0:
        try:
            session.up(command=["true"]).__enter__()
        except orchestrator.UsageError as error:
            print(f"process {os.getppid()}" in str(error), flush=True)
        with orchestrator.Session() as own, own.up(command=["true"]) as run:
            print(run.wait().outcome, flush=True)
        sys.exit(0)
    os.waitpid(child, 0)
    with session.up(command=["true"]) as run:
        run.wait()
    print(run.view.record.supervisor_pid == kept)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout.splitlines(), done.stderr) == (["True", "succeeded", "True"], "")


def change_umask() -> Callable[[], object]:
    before = os.umask(0o027)
    return lambda: os.umask(before)


def change_affinity() -> Callable[[], object]:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("there is only one core")
    os.sched_setaffinity(0, {max(before)})
    return lambda: os.sched_setaffinity(0, before)


def change_limit() -> Callable[[], object]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 8, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("change", [change_umask, change_affinity, change_limit])
def test_run_inherits_current_umask_affinity_and_limits(change: Callable[[], Callable[[], object]]) -> None:
    tell = "umask; ulimit -n; grep Cpus_allowed_list /proc/self/status"
    said, supervisors = [], []

    def look(session: Session) -> None:
        with session.up(command=["sh", "-c", tell]) as run:
            run.wait()
        said.append(run.log("worker:0").read_text())
        supervisors.append(run.view.record.supervisor_pid)

    with Session() as session:
        look(session)
        undo = change()
        try:
            said.append(subprocess.run(["sh", "-c", tell], capture_output=True, text=True).stdout)
            look(session)
            look(session)
        finally:
            undo()
    before, expected, first, second = said
    assert before != expected
    assert first == second == expected
    # A new supervisor starts only after a change.
    assert supervisors[0] != supervisors[1] == supervisors[2]
