"""Several clusters from one session: what they share, what is new for each, and that nothing is left after it."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from kept_session import kept_session
from making import JOB, changed
from waiting import lives, until, until_gone

from orchestrator import Cluster, NameTaken, Session, UsageError
from orchestrator.client import api
from orchestrator.client.api import Run
from orchestrator.links.client_link import Request, pack_environ
from orchestrator.links.supervisor_link import start_supervisor
from orchestrator.store.runs.locks import lock_name

SLEEPS = ["sleep", "600"]
pytestmark = pytest.mark.usefixtures("no_leaked_descriptors")


def supervisor_of(run: Run) -> psutil.Process:
    return psutil.Process(run.view.record.supervisor_pid)


def agent_of(run: Run) -> psutil.Process:
    (agent,) = supervisor_of(run).children()
    return agent


def kept_by(run: Run) -> tuple[int, int]:
    return supervisor_of(run).pid, agent_of(run).pid


def ran(session: Session, *command: str, **options: Any) -> Run:
    """A run of the session that has succeeded."""
    with session.up(command=command or ["true"], **options) as run:
        run.wait()
    return run


def test_runs_share_only_the_supervisor_and_the_agent() -> None:
    command = ("sh", "-c", "echo $ORCH_RUN_ID $ORCH_RUN_DIR")
    with Session() as session:
        runs = [ran(session, *command, workers=2) for _ in range(3)]
        (kept,) = set(map(kept_by, runs))
    assert not any(map(lives, kept))
    assert len({run.id for run in runs}) == len({run.dir for run in runs}) == 3
    assert [run.status().run.state for run in runs] == ["succeeded"] * 3
    assert [run.log("worker:1").read_text() for run in runs] == [f"{run.id} {run.dir}\n" for run in runs]
    # orch's own processes wrote no errors.
    assert {(run.dir / name).read_text() for run in runs for name in ("supervisor.log", "agent.log")} == {""}


# Rows: an event in a live run, its outcome, and whether the next run gets the same processes or others.
ENDS: dict[str, tuple[Callable[[Run], object], str, tuple[bool, bool]]] = {
    "the block ends": (lambda run: None, "stopped", (True, True)),
    "the task is killed": (lambda run: os.kill(task_of(run), signal.SIGKILL), "failed", (True, True)),
    "down": (lambda run: api.down("again"), "stopped", (True, True)),
    "the agent is killed": (lambda run: agent_of(run).kill(), "failed", (True, False)),
    "the supervisor is killed": (lambda run: supervisor_of(run).kill(), "lost", (False, False)),
    "the supervisor is stopped": (lambda run: supervisor_of(run).terminate(), "stopped", (False, False)),
}


def task_of(run: Run) -> int:
    pid = run.status().tasks[0].pid
    assert pid is not None
    return pid


def test_next_run_with_the_same_name_works_after_each_end() -> None:
    wrong = []
    with Session() as session:
        before = kept_by(ran(session))
        for what, (end, outcome, keeps) in ENDS.items():
            with session.up(command=SLEEPS, name="again") as run:
                run.wait_ready()
                end(run)
                if what != "the block ends":
                    run.wait(check=False)
            after = kept_by(ran(session, name="again"))
            found = run.wait(check=False).outcome, tuple(a == b for a, b in zip(before, after, strict=True))
            if found != (outcome, keeps):
                wrong.append((what, found))
            before = after
        with session.up(command=SLEEPS, timeout="100ms") as run:
            assert run.wait(check=False).outcome == "timed_out"
        agent = agent_of(run)
        agent.kill()
        until_gone(agent.pid)
        assert agent_of(ran(session)).pid != agent.pid
    assert not wrong, wrong


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with kept_session(tmp_path_factory.mktemp("session")) as session:
        yield session


def test_session_is_usable_after_a_refused_run(session: Session) -> None:
    with Cluster(command=SLEEPS, name="taken") as other:
        with pytest.raises(NameTaken), session.up(command=["true"], name="taken"):
            pass
        # Text is a sequence of characters, too.
        for command in (["no-such-command"], "no-such-command --option"):
            with pytest.raises(UsageError, match="not found: no-such-command is not on PATH"):
                session.up(command=command)
        with session.up(command=SLEEPS, name="first") as run:
            with pytest.raises(UsageError, match="one cluster at a time"), session.up(command=["true"]):
                pass
            assert run.view.is_live and other.view.is_live
        ran(session)


def test_name_of_a_refused_run_is_free() -> None:
    """The supervisor has taken the name before it finds that the run's files cannot be made."""
    refused = changed(JOB, name="twice", name_is_explicit=True, log_dir=Path("/proc/none"))
    with closing(start_supervisor()) as supervisor:
        with pytest.raises(UsageError, match="cannot be made"):
            supervisor.create(Request(spec=refused, environ=pack_environ(os.environ)))
        lock = lock_name("twice")
        assert lock is not None
        lock.release()


def test_close_stops_the_live_run() -> None:
    session = Session()
    cluster = session.up(command=SLEEPS)
    run = cluster.__enter__()
    run.wait_ready()
    session.close()
    session.close()
    assert run.wait(check=False).outcome == "stopped"
    cluster.__exit__(None, None, None)


def test_run_gets_the_current_environment(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    for value in ("first", b"\xff".decode(errors="surrogateescape"), None):
        if value is None:
            monkeypatch.delenv("SHOWN")
        else:
            monkeypatch.setenv("SHOWN", value)
        said.append(ran(session, "sh", "-c", 'printf "[%s]" "$SHOWN"').log("worker:0").read_bytes())
    assert said == [b"[first]", b"[\xff]", b"[]"]


def test_run_inherits_current_umask_affinity_and_limits() -> None:
    """A new supervisor starts only after a change."""
    tell = ("sh", "-c", "umask; ulimit -n; grep Cpus_allowed_list /proc/self/status")
    cores, (files, most_files) = os.sched_getaffinity(0), resource.getrlimit(resource.RLIMIT_NOFILE)
    with Session() as session, ExitStack() as stack:
        before = ran(session, *tell)
        stack.callback(os.umask, os.umask(0o027))
        stack.callback(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, {max(cores)})
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (files, most_files))
        resource.setrlimit(resource.RLIMIT_NOFILE, (files - 8, most_files))
        expected = subprocess.run(tell, capture_output=True, text=True, check=True).stdout
        runs = [ran(session, *tell) for _ in range(2)]
        assert [run.log("worker:0").read_text() for run in runs] == [expected] * 2
        supervisors = [run.view.record.supervisor_pid for run in (before, *runs)]
        assert supervisors[0] != supervisors[1] == supervisors[2]
    assert expected.startswith("0027")


def test_processes_exit_when_the_session_process_is_killed(tmp_path: Path) -> None:
    program = """
import orchestrator, sys
session = orchestrator.Session()
cluster = session.up(command=["sleep", "600"])
run = cluster.__enter__()
run.wait_ready()
print(run.id, flush=True)
sys.stdin.read()
"""
    argv = [sys.executable, "-c", program]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path, text=True
    ) as client:
        assert client.stdout is not None
        run = api.find(client.stdout.readline().strip())
        processes = (*kept_by(run), task_of(run))
        client.kill()
    until_gone(*processes)
    assert run.wait(check=False).outcome == "stopped"


# -- interrupts, threads, forks


@pytest.fixture
def interrupts() -> Iterator[signal.Signals]:
    """A signal that raises KeyboardInterrupt."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


@contextmanager
def beside(action: Callable[[], object]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=action)
    thread.start()
    try:
        yield thread
    finally:
        thread.join()


def waits_for_an_answer(thread: int | None) -> bool:
    """Whether that thread has sent its request and is reading the answer."""
    frame = sys._current_frames().get(thread or 0)
    while frame is not None:
        if frame.f_code.co_name == "_read_answer" and frame.f_code.co_filename.endswith("supervisor_link.py"):
            return True
        frame = frame.f_back
    return False


def test_interrupted_creation_does_not_affect_the_next_run(interrupts: signal.Signals) -> None:
    main = threading.get_ident()
    with Session() as session:
        supervisor = supervisor_of(ran(session))
        supervisor.suspend()

        def press() -> None:
            try:
                until(lambda: waits_for_an_answer(main))
            finally:
                signal.pthread_kill(main, interrupts)
                supervisor.resume()

        with (
            beside(press),
            pytest.raises(KeyboardInterrupt),
            session.up(command=SLEEPS, name="interrupted"),
        ):
            pass
        assert not any(run.view.is_live for run in api.ls())
        following = [ran(session, name=name) for name in ("interrupted", "next")]
        assert [run.name for run in following] == ["interrupted", "next"]
        assert {supervisor_of(run) for run in following} == {supervisor}


def test_second_thread_gets_an_error_while_a_run_is_created(session: Session) -> None:
    runs: list[Run] = []
    supervisor = supervisor_of(ran(session))
    supervisor.suspend()
    with beside(lambda: runs.append(ran(session, name="first"))) as asking:
        try:
            until(lambda: waits_for_an_answer(asking.ident))
            with pytest.raises(UsageError, match="another thread"), session.up(command=["true"]):
                pass
        finally:
            supervisor.resume()
    ran(session, name="second")
    assert [run.name for run in runs] == ["first"]


def test_forked_process_neither_stops_a_run_nor_uses_or_keeps_the_session(tmp_path: Path) -> None:
    program = """
import orchestrator, os, signal, sys, time
SLEEPS = ["sleep", "600"]
with orchestrator.Session() as session:
    for cluster in (orchestrator.Cluster(command=SLEEPS), session.up(command=SLEEPS)):
        with cluster as run:
            run.wait_ready()
            child = os.fork()
            if child == 0:
                sys.exit(7)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            print(status, run.status().run.state)
        print(run.wait(check=False).outcome, flush=True)
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
        print(run.wait().outcome, run.view.record.supervisor_pid == kept)
    # A forked process may keep the connections of the session.
    child = os.fork()
    if child == 0:
        time.sleep(600)
print(os.path.exists(f"/proc/{kept}"))
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    expected = [*("7 running", "stopped") * 2, "True", "succeeded", "succeeded True", "False"]
    assert (done.stdout.splitlines(), done.stderr) == (expected, "")


# -- preloaded modules


def preloaded(run: Run) -> tuple[set[str], list[bool]]:
    """How the tasks were started, and whether this run waited for the imports of a preloader."""
    lines = map(json.loads, run.view.paths.events.read_text().splitlines())
    events = [event for event in lines if event["type"] in ("task_started", "preload")]
    methods = {event["method"] for event in events if event["type"] == "task_started"}
    took_s = [event["seconds"] for event in events if event["type"] == "preload"]
    return methods, [seconds > 0 for seconds in took_s if seconds is not None]


def test_modules_stay_imported_until_their_conditions_change(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "elsewhere"):
        place.mkdir(exist_ok=True)
        (place / "look.py").write_text("import decimal, os; print(os.environ['ORCH_RUN_ID'])")
    first, kept, spawned = ({"fork"}, [True]), ({"fork"}, [False]), ({"spawn"}, [])
    rows: list[tuple[dict[str, Any], object]] = [
        ({}, first),
        ({}, kept),
        ({"env": {"MINE": "2"}}, kept),  # no import reads it
        ({"env": {"OMP_NUM_THREADS": "2"}}, first),
        ({"preload": "decimal,fractions"}, first),
        ({"cwd": "elsewhere"}, first),
        ({}, first),
        ({"command": ["true"], "preload": None}, spawned),
        ({"start": "spawn"}, spawned),
        ({}, kept),
    ]
    wrong = []
    with Session() as session:
        for options, expected in rows:
            chosen = {"command": ["look.py"], "preload": "decimal", "env": {"MINE": "1"}, **options}
            with session.up(2, directory=tmp_path, **chosen) as run:
                run.wait()
            if (found := preloaded(run)) != expected:
                wrong.append((options, found))
        assert run.log("worker:1").read_text() == f"{run.id}\n"
        agent = agent_of(run)
        (preloader,) = agent.children()
        preloader.kill()
        # Otherwise the agent would ask the killed preloader to fork the next run's task.
        until(lambda: preloader not in agent.children())
        # A function is forked, too.
        assert session.run(int, directory=tmp_path, preload="decimal") == [0]
        assert len(agent.children()) == 1
    assert preloaded(api.find(None, tmp_path)) == first
    assert not wrong, wrong
