"""Runs on a host that is this machine: a program in the place of ssh runs its command here. Needs no root."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from orch_command import Orch, Started
from waiting import until

from orchestrator import Session
from orchestrator.client.launch import create_run, load_request
from orchestrator.links.supervisor_link import start_supervisor

# Called as ssh OPTIONS DESTINATION COMMAND.
SSH = """#!/bin/sh
for word; do :; done
export SSH_CONNECTION="{address} 1 {address} 22" TMPDIR="{temporary}"
cd {directory}
touch connection-$$
exec sh -c "$word"
"""
UNREACHED = "the agent on a, which orch does not reach, ends everything there by itself"
SHOW = """
import os
directory = os.environ["ORCH_CHECKPOINT_DIR"]
print(os.environ["ORCH_TASK"], os.environ["TF_CONFIG"].count(":"), os.path.isdir(directory), directory, flush=True)
"""
SLEEP = "import time; print('up', flush=True); time.sleep(600)"
FAIL = """
import os, time
if os.environ['ORCH_TASK'] == 'worker:2':
    raise ValueError('a fault of its own')
time.sleep(600)
"""
# Each attempt waits for the end of its host.
TRAIN = r"""
import os, time
os.write(int(os.environ['ORCH_PROGRESS_FD']), b'{"phase": "training", "step": 1}\n')
print('attempt', os.environ['ORCH_ATTEMPT'], flush=True)
time.sleep(600)
"""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """The directory for the agents' files. Its path is short enough for a unix socket."""
    with tempfile.TemporaryDirectory(prefix="hosts-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture
def up(orch: Orch, tmp_path: Path, temporary: Path) -> Iterator[list[str]]:
    """The words of a run of three workers on the host a. At the end, nothing of a run is left there."""
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH.format(address=own_address(), temporary=temporary, directory=tmp_path))
    ssh.chmod(0o700)
    yield [
        # A busy machine may starve an agent for longer than usual.
        *("up", "-n", "3", "--engine", "ssh", "--hosts", "a:3", "--link-timeout", "60s"),
        *("--ssh-command", str(ssh), "--checkpoint-dir", str(tmp_path / "checkpoints")),
    ]
    until(lambda: not any(processes_of(run.name) for run in orch.run_dirs()))
    # The guard removes the directory last.
    until(lambda: not any(temporary.iterdir()))


@pytest.fixture
def live(orch: Orch, up: list[str]) -> Started:
    """A run whose tasks sleep."""
    running = orch.start(*up, "--on-failure", "continue", *python(SLEEP))
    running.until_out("up", 3)
    return running


def own_address() -> str:
    for found in psutil.net_if_addrs().values():
        for each in found:
            if each.family == socket.AF_INET and not each.address.startswith("127."):
                return each.address
    pytest.skip("this machine has no address but 127.0.0.1")


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-c", code]


def processes_of(run_id: str) -> list[psutil.Process]:
    """The processes of the run on its hosts."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("ORCH_RUN_ID") == run_id or run_id in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def agent_of(orch: Orch) -> psutil.Process:
    return psutil.Process(orch.status()["tasks"][0]["pid"]).parent()


def silent_agent(orch: Orch) -> psutil.Process:
    agent = agent_of(orch)
    agent.suspend()
    until(lambda: orch("status", "--json").document["hosts"][0]["state"] == "silent")
    return agent


def test_tasks_run_on_their_hosts_over_the_connections_that_have_checked_them(
    orch: Orch, up: list[str], tmp_path: Path
) -> None:
    """The checkpoint directory is created there. Without a name, it is in the private directory of the host."""
    *words, option, named = up
    done = orch(*words, option, named, *python(SHOW))
    shown = [f"worker:{index} | worker:{index} 8 True {named}" for index in range(3)]
    assert (done.code, sorted(done.out.splitlines())) == (0, shown), done.err
    assert len(list(tmp_path.glob("connection-*"))) == 1
    result = orch.result()
    assert [task["host"] for task in result["tasks"]] == ["a", "a", "a"]
    assert [host["host"] for host in result["hosts"]] == ["a"]
    done = orch(*words, *python(SHOW))
    assert (done.code, done.out.count(" True ")) == (0, 3), done.err
    assert str(orch.state) not in done.out


def test_each_run_of_a_session_has_its_own_environment(
    orch: Orch, up: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values may have any bytes, those of the path for modules among them."""
    command = python("import os; print(os.environ['MINE'], os.environ['PYTHONPATH'])")[1:]
    found = []
    with Session() as session:
        monkeypatch.setenv("PYTHONPATH", os.fsdecode(b"/\xff"))
        for value in ("1", "2"):
            monkeypatch.setenv("MINE", value)
            options: dict[str, Any] = {"hosts": "a:1", "ssh_command": up[-3], "command": command}
            with session.up(1, directory=tmp_path, **options) as run:
                run.wait()
                found.append(run.log("worker:0").read_bytes())
    assert found == [b"1 /\xff\n", b"2 /\xff\n"]


def test_agents_of_a_refused_job_exit(orch: Orch, up: list[str]) -> None:
    done = orch(*up, "--hosts", "a:2,b:1", *python(SHOW))
    assert (done.code, done.out) == (2, "")
    assert "a and b are names of one machine" in done.err
    assert not orch.run_dirs()


@pytest.mark.usefixtures("orch")
def test_agents_prepared_for_another_job_are_replaced(up: list[str], tmp_path: Path) -> None:
    """The prepared agents exit, and others start."""
    request, other = (
        load_request(workers, python("pass")[1:], tmp_path, {"hosts": "a:3", "ssh_command": up[-3]})
        for workers in (2, 3)
    )
    with start_supervisor() as supervisor:
        supervisor.prepare(other.spec)
        run = create_run(supervisor, request)
        assert [task.state for task in run.wait().tasks] == ["succeeded"] * 2


def test_own_failure_on_a_host_is_named(orch: Orch, up: list[str]) -> None:
    done = orch(*up, *python(FAIL))
    result = orch.result()
    assert (done.code, result["cause"]["task"], result["cause"]["kind"]) == (1, "worker:2", "exited")
    assert result["first_failure"]["exception"] == "ValueError: a fault of its own"
    assert "ValueError: a fault of its own" in done.err


def test_run_restarts_after_a_lost_host_until_no_restart_is_left(orch: Orch, up: list[str]) -> None:
    running = orch.start(*up, "--max-restarts", "1", "--on-failure", "restart", *python(TRAIN))
    for attempt in (1, 2):
        running.until_out(f"attempt {attempt}", 3)
        agent_of(orch).kill()
    done = running.finish()
    result = orch.result()
    assert (done.code, result["cause"]["kind"], result["cause"]["host"]) == (137, "host", "a")
    assert "a was lost" in done.err
    assert [task["state"] for task in result["tasks"]] == ["lost"] * 3
    assert result["attempts"] == 2


def test_orders_for_a_silent_host_name_it_and_wait_for_it(orch: Orch, live: Started) -> None:
    agent = silent_agent(orch)
    assert "worker:1 did not answer in time: a is silent" in orch("stacks").err
    assert "a is silent: it sends SIGKILL to worker:1 (pid" in orch("kill", "worker:1").err
    agent.resume()
    until(lambda: orch.task("worker:1")["signal"] == signal.SIGKILL)
    silent_agent(orch)
    live.signal(signal.SIGINT)
    said = "stopping: no answer from a; orch waits until it answers or is given up"
    until(lambda: said in live.err)
    agent.resume()
    assert live.finish().code == 130
    killed = orch.result()["tasks"][1]
    assert (killed["task"], killed["signal"]) == ("worker:1", signal.SIGKILL)


def test_down_names_a_host_that_is_lost(orch: Orch, live: Started) -> None:
    agent = agent_of(orch)
    agent.suspend()
    down = orch.start("down")
    until(lambda: orch("status", "--json").document["run"]["state"] == "stopping")
    agent.kill()
    done = down.finish()
    assert done.code == 0
    assert f"; {UNREACHED}" in done.err
    assert live.finish().code == 143


def test_stop_does_not_wait_for_a_host_that_has_not_answered_the_check(
    orch: Orch, up: list[str], tmp_path: Path
) -> None:
    ssh = tmp_path / "silent"
    ssh.write_text(f"#!/bin/sh\ntouch {tmp_path}/connection-$$\nexec sleep 600\n")
    ssh.chmod(0o700)
    running = orch.start(*up, "--ssh-command", str(ssh), *python(SLEEP))
    (connection,) = until(lambda: list(tmp_path.glob("connection-*")))
    running.signal(signal.SIGINT)
    assert running.finish().code == 130
    assert not psutil.pid_exists(int(connection.name.partition("-")[2]))


@pytest.mark.slow
def test_many_hosts_under_a_low_soft_limit_on_open_files(orch: Orch) -> None:
    """The check raises the limit, and so do the agents that start beside it."""
    hosts = ",".join(f"n{at}" for at in range(60))
    limited = ("prlimit", "--nofile=50:4096")
    done = orch.start(*f"up -n 60 --hosts {hosts} --ssh-command false".split(), before=limited).finish()
    assert (done.code, done.err.count("its login shell ended with exit code 1")) == (2, 60)
    assert "Traceback" not in done.err and "Too many open files" not in done.err


@pytest.mark.slow
def test_nothing_is_left_after_the_supervisor_was_killed(orch: Orch, up: list[str]) -> None:
    running = orch.start(*up, "--link-timeout", "4s", *python(SLEEP))
    running.until_out("up", 3)
    psutil.Process(orch.supervisor()).kill()
    running.finish()
    assert f"was not running; {UNREACHED}" in orch("down").err


# Rows: the text that ssh writes into the file of -E, the text on stderr, and orch's message. None: ssh has no -E.
MESSAGES: list[tuple[str | None, str, str]] = [
    # As an old ssh, or another program: all is on stderr.
    (None, f"REMOTE HOST IDENTIFICATION HAS CHANGED{' x' * 1500}", "a: ssh failed: REMOTE HOST IDENT"),
    (None, f"UNPROTECTED PRIVATE KEY FILE{' x' * 1500}", "a: ssh failed: UNPROTECTED"),
    (None, "ann@a: Permission denied (publickey).", "a: it does not let you in without a password"),
    # As ssh, whose messages go to the file of -E. The text on stderr is that of the host.
    (
        "client_loop: send disconnect: Broken pipe",
        "ann@a: Permission denied (publickey).",
        "a: the connection broke (client_loop",
    ),
    ("", "ann@a: Permission denied (publickey).", "a: its login shell ended with exit code 255"),
]


def test_text_of_a_host_neither_delays_orch_nor_imitates_ssh(
    orch: Orch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    ssh = tmp_path / "ssh"
    for log, text, said in MESSAGES:
        writes = "" if log is None else f"while [ $1 != -E ]; do shift; done; echo '{log}' >$2"
        ssh.write_text(f"#!/bin/sh\n{writes}\necho '{text}' >&2\nexit 255\n")
        ssh.chmod(0o700)
        done = orch.within("up", "--engine", "ssh", "--hosts", "a", "--ssh-command", str(ssh), "--", "true")
        assert done.code == 2 and said in done.err, done.err
    assert not list(temporary.glob("orch-ssh-*"))
