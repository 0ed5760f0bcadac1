"""Several clusters from one session: which processes are kept between them, and that none survives the session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from job_making import JOB, changed
from waiting import lives, until_gone

import orchestrator
from orchestrator import Cluster, NameTaken, Session, UsageError
from orchestrator.client import api
from orchestrator.client.api import Run
from orchestrator.links.client_link import Lifetime, Request
from orchestrator.links.supervisor_link import start_supervisor
from orchestrator.store.runs.locks import lock_name

SLEEPS = ["sleep", "600"]
pytestmark = pytest.mark.usefixtures("no_leaked_descriptors")


def supervisor_of(run: Run) -> psutil.Process:
    return psutil.Process(run.view.record.supervisor_pid)


def agent_of(run: Run) -> psutil.Process:
    (agent,) = supervisor_of(run).children()
    return agent


def test_runs_share_only_the_supervisor_and_the_agent() -> None:
    runs, processes = [], set()
    with Session() as session:
        for word in ("one", "two", "three"):
            with session.up(
                workers=2, command=["sh", "-c", f"echo {word} $ORCH_RUN_ID $ORCH_RUN_DIR"]
            ) as run:
                result = run.wait()
            processes.add((supervisor_of(run).pid, agent_of(run).pid))
            assert (result.run_id, result.outcome, len(result.tasks)) == (run.id, "succeeded", 2)
            assert run.log("worker:1").read_text() == f"{word} {run.id} {run.dir}\n"
            runs.append(run)
        assert len(processes) == 1
        assert len({run.id for run in runs}) == len({run.dir for run in runs}) == 3
    assert not any(lives(pid) for pid in processes.pop())
    assert [run.status().run.state for run in runs] == ["succeeded"] * 3
    # orch's own processes wrote no errors.
    assert {(run.dir / name).read_text() for run in runs for name in ("supervisor.log", "agent.log")} == {""}


def test_next_run_works_after_a_failed_or_stopped_one() -> None:
    with Session() as session:
        with session.up(workers=2, command=["sh", "-c", "exit 3"]) as run:
            assert run.wait(check=False).exit_code == 3
        with session.up(command=SLEEPS) as run:
            run.wait_ready()
        assert run.wait(check=False).outcome == "stopped"
        with session.up(command=SLEEPS, timeout="100ms") as run:
            assert run.wait(check=False).outcome == "timed_out"
        with session.up(command=["true"]) as run:
            assert run.wait().exit_code == 0


def test_down_stops_the_run_but_not_the_session() -> None:
    with Session() as session:
        with session.up(command=SLEEPS, name="mine") as run:
            run.wait_ready()
            supervisor = supervisor_of(run)
            api.down("mine")
            assert run.wait(check=False).exit_code == 143
        with session.up(command=["true"], name="mine") as run:
            run.wait()
            assert supervisor_of(run) == supervisor


def test_session_is_usable_after_a_refused_run() -> None:
    with Session() as session, orchestrator.Cluster(command=SLEEPS, name="taken") as other:
        with pytest.raises(NameTaken), session.up(command=["true"], name="taken"):
            pass
        with pytest.raises(UsageError, match="no-such-command"):
            session.up(command=["no-such-command"])
        with session.up(command=SLEEPS, name="first") as run:
            with pytest.raises(UsageError, match="one cluster at a time"), session.up(command=["true"]):
                pass
            assert run.view.is_live and other.view.is_live
        with session.up(command=["true"]) as run:
            assert run.wait().succeeded


def test_name_of_a_refused_run_is_free() -> None:
    """The supervisor has taken the name before it finds that the run's files cannot be made."""
    refused = changed(JOB, name="twice", name_is_explicit=True, log_dir=Path("/proc/none"))
    with closing(start_supervisor()) as supervisor:
        with pytest.raises(UsageError, match="cannot be made"):
            supervisor.create(Request(spec=refused, lifetime=Lifetime.SESSION))
        lock = lock_name("twice")
        assert lock is not None
        lock.release()


def test_run_gets_the_current_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    show = ["sh", "-c", 'printf "[%s]" "$SHOWN"']
    said = []
    with Session() as session:
        for value in ("first", b"\xff".decode(errors="surrogateescape"), None):
            if value is None:
                monkeypatch.delenv("SHOWN")
            else:
                monkeypatch.setenv("SHOWN", value)
            with session.up(command=show) as run:
                run.wait()
            said.append(run.log("worker:0").read_bytes())
    assert said == [b"[first]", b"[\xff]", b"[]"]


@pytest.mark.parametrize("moment", ["during", "between"])
def test_killed_agent_is_replaced(moment: str) -> None:
    with Session() as session:
        with session.up(command=SLEEPS) as run:
            run.wait_ready()
            agent = agent_of(run)
            if moment == "during":
                agent.kill()
                assert run.wait(check=False).exit_code == 125
        if moment == "between":
            agent.kill()
            until_gone(agent.pid)
        with session.up(command=["true"]) as run:
            assert run.wait().succeeded
            assert agent_of(run).pid != agent.pid


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_supervisor_is_replaced(number: signal.Signals) -> None:
    with Session() as session:
        with session.up(command=SLEEPS) as run:
            run.wait_ready()
            supervisor = supervisor_of(run)
            supervisor.send_signal(number)
            assert run.wait(check=False).outcome == ("lost" if number is signal.SIGKILL else "stopped")
        with session.up(command=["true"]) as run:
            assert run.wait().succeeded
            assert supervisor_of(run).pid != supervisor.pid


def test_close_stops_the_live_run() -> None:
    session = Session()
    cluster = session.up(command=SLEEPS)
    run = cluster.__enter__()
    run.wait_ready()
    session.close()
    session.close()
    assert run.wait(check=False).outcome == "stopped"
    cluster.__exit__(None, None, None)


def test_processes_exit_when_the_session_process_is_killed(tmp_path: Path) -> None:
    program = """
import orchestrator, sys
session = orchestrator.Session()
with session.up(command=["true"]) as run:
    run.wait()
with session.up(command=["sleep", "600"]) as run:
    run.wait_ready()
    print(run.id, flush=True)
    sys.stdin.read()
"""
    client = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        text=True,
    )
    assert client.stdin is not None and client.stdout is not None
    with client:
        run = api.find(client.stdout.readline().strip())
        task = run.status().tasks[0].pid
        assert task is not None
        processes = [supervisor_of(run).pid, agent_of(run).pid, task]
        os.kill(client.pid, signal.SIGKILL)
    until_gone(*processes)
    assert run.wait(check=False).outcome == "stopped"


def test_idle_processes_exit_when_the_session_process_is_killed(tmp_path: Path) -> None:
    program = """
import orchestrator, sys
session = orchestrator.Session()
with session.up(command=["true"]) as run:
    run.wait()
print(run.id, flush=True)
sys.stdin.read()
"""
    client = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        text=True,
    )
    assert client.stdin is not None and client.stdout is not None
    with client:
        run = api.find(client.stdout.readline().strip())
        kept = [supervisor_of(run).pid, agent_of(run).pid]
        os.kill(client.pid, signal.SIGKILL)
    until_gone(*kept)


def test_command_may_be_text(tmp_path: Path) -> None:
    """Text is also a sequence, of characters, and must not be taken for a list of words."""
    with pytest.raises(UsageError, match="not found: no-such-command is not on PATH"):
        Cluster(command="no-such-command --option", directory=tmp_path)
    with Session() as session, pytest.raises(UsageError, match="not found: no-such-command is not on PATH"):
        session.up(command="no-such-command --option", directory=tmp_path)
