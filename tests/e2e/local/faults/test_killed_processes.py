"""After the client, supervisor or agent is killed, no process is left and the result is right."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from faulty_runs import (
    DAEMONISES,
    SLEEP,
    WRITES,
    agent_of,
    assert_gone,
    assert_logs_are_whole,
    assert_the_next_run_works,
    cluster,
    find,
    grandchildren,
    python,
    supervisor_of,
    task_pids,
    up,
)
from waiting import lives, until

from orchestrator import RunLost, RunStopped
from orchestrator.client import api
from orchestrator.core.state.result import CauseKind

IGNORES_SIGTERM = (DAEMONISES, WRITES, SLEEP)
CLIENT = """
import sys, time
import orchestrator
with orchestrator.Cluster(workers=2, command=sys.argv[1:], grace="10m") as run:
    print(run.id, flush=True)
    time.sleep(600)
"""


def test_killed_client_stops_the_run() -> None:
    argv = [sys.executable, "-c", CLIENT, *python(*IGNORES_SIGTERM)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        run = find(client.stdout.readline().strip())
        pids = [*task_pids(run), *grandchildren(), supervisor_of(run), agent_of(run)]
        up()
        client.send_signal(signal.SIGKILL)
    assert_gone(pids)
    status = run.status()
    assert (status.run.state, status.run.exit_code) == ("stopped", 143)
    assert {task.state for task in status.tasks} == {"stopped"}
    with pytest.raises(RunStopped):
        run.wait()
    assert_logs_are_whole(run)
    assert_the_next_run_works()


def test_killed_supervisor_loses_the_run() -> None:
    with cluster(*IGNORES_SIGTERM, grace="10m") as run:
        pids = [*task_pids(run), *grandchildren(), agent_of(run), supervisor_of(run)]
        up()
        os.kill(supervisor_of(run), signal.SIGKILL)
        assert_gone(pids)
        status = run.status()
        assert status.run.state == "lost"
        assert {task.state for task in status.tasks} == {"lost"}
        with pytest.raises(RunLost) as caught:
            run.wait()
        assert (caught.value.exit_code, caught.value.result.outcome) == (125, "lost")
    assert_logs_are_whole(run)
    assert_the_next_run_works()
    # The start of the next run wrote the result of this one.
    written = run.view.result()
    assert written is not None
    assert (written.outcome, [task.state for task in written.tasks]) == ("lost", ["lost", "lost"])


def test_killed_agent_fails_the_run() -> None:
    with cluster(*IGNORES_SIGTERM, grace="10m") as run:
        pids = [*task_pids(run), *grandchildren()]
        up()
        os.kill(agent_of(run), signal.SIGKILL)
        result = run.wait(check=False)
        assert not any(lives(pid) for pid in pids)
        assert (result.outcome, result.exit_code) == ("failed", 125)
        assert result.cause is not None
        assert (result.cause.task, result.cause.kind) == (None, CauseKind.ORCH)
        assert "agent" in result.cause.text
        status = run.status()
        assert (status.run.state, status.run.exit_code) == ("failed", 125)
        assert {task.state for task in status.tasks} == {"lost"}
    assert_logs_are_whole(run)
    assert_the_next_run_works()


def test_terminated_agent_is_not_a_task_failure() -> None:
    with cluster(*IGNORES_SIGTERM, grace="10m") as run:
        pids = [*task_pids(run), *grandchildren()]
        up()
        os.kill(agent_of(run), signal.SIGTERM)
        result = run.wait(check=False)
        assert not any(lives(pid) for pid in pids)
    assert (result.exit_code, result.first_failure) == (125, None)
    assert result.cause is not None and result.cause.kind is CauseKind.ORCH


def test_killed_supervisor_and_agent_leave_no_process() -> None:
    with cluster(*IGNORES_SIGTERM) as run:
        tasks, daemons = task_pids(run), grandchildren()
        up()
        agent, supervisor = agent_of(run), supervisor_of(run)
        # Stop both first, so that neither can react to the other's exit.
        os.kill(agent, signal.SIGSTOP)
        os.kill(supervisor, signal.SIGSTOP)
        os.kill(supervisor, signal.SIGKILL)
        os.kill(agent, signal.SIGKILL)
        assert_gone([*tasks, agent, supervisor])
        assert run.status().run.state == "lost"
        # They can only be found by the run's id in their environment.
        assert all(lives(pid) for pid in daemons)
        assert api.tidy() == [(run.id, 2)]
        assert not any(lives(pid) for pid in daemons)
        assert api.tidy() == []
    assert_logs_are_whole(run)
    assert_the_next_run_works()


def test_run_ends_without_a_hanging_agent() -> None:
    with cluster(*IGNORES_SIGTERM, grace="0s") as run:
        pids = [*task_pids(run), *grandchildren()]
        up()
        agent = agent_of(run)
        os.kill(agent, signal.SIGSTOP)
        run.down()
        assert not any(lives(pid) for pid in [*pids, agent])
        result = run.wait(check=False)
    assert (result.outcome, result.exit_code) == ("failed", 125)
    assert result.cause is not None and "agent" in result.cause.text


def test_process_without_orch_environment_is_killed(here: Path) -> None:
    bare = "pid = os.fork()\nif pid == 0:\n os.setsid(); os.execve('/bin/sleep', ['sleep', '600'], {})\n"
    note = "touch(f'bare-{pid}'); wait_for('never')"
    with cluster(bare, note, workers=1) as run:
        found = until(lambda: list(here.glob("bare-*")))
        pid = int(found[0].name.partition("-")[2])
        until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
        os.kill(agent_of(run), signal.SIGKILL)
        run.wait(check=False)
        assert not lives(pid)
