"""An agent on another host: tasks, their logs, the loss of the link, and nothing left after any end.

The host is this machine, reached by `sh -c`: guard and agent are real.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from acting_as import as_user, needs_root
from agent_driving import DAEMONISES, SLEEPER, python, run_order, signal_and_wait
from host_driving import RUN, HostDriver
from waiting import lives, until, until_gone

from orchestrator.links.agent_link import LinkBack, LinkSilent
from orchestrator.links.client_link import travelling_environ
from orchestrator.links.opening import Opening
from worker.agent.processes import read_stat
from worker.wire.messages import Empty, Exited, Stacked, Stop

# Prints numbered lines, in pieces of all sizes, for as long as it takes to break a few connections.
COUNTS = """
import sys, time
for number in range(60_000):
    sys.stdout.write(f"line {number} {'x' * (number % 97)}\\n")
    if number % 500 == 0:
        sys.stdout.flush()
        time.sleep(0.01)
"""


def counted() -> str:
    return "".join(f"line {number} {'x' * (number % 97)}\n" for number in range(60_000))


# -- tasks and logs


def test_exit_follows_the_last_byte_of_the_log(host: HostDriver) -> None:
    host.start("worker-0", python("import sys; print('x' * 3_000_000 + 'end'); sys.exit(7)"))
    exited = host.exited("worker-0")
    assert (exited.exit_code, exited.asked) == (7, False)
    assert host.text("worker-0") == "x" * 3_000_000 + "end\n"


def test_all_logs_are_there_when_nothing_is_left(host: HostDriver) -> None:
    """A process that outlives its task writes a lot when it is ended."""
    program = """
import os, signal, sys, time
def end(*_):
    os.write(1, b"x" * 5_000_000)
    os._exit(0)
if os.fork() == 0:
    signal.signal(signal.SIGTERM, end)
    os.write(1, b"up\\n")
    while True:
        time.sleep(0.05)
"""
    host.start("worker-0", python(program))
    host.wait_for(Exited, "worker-0")
    host.wait_for_line("worker-0")
    host.end(60.0)
    on_its_host = host.home / RUN / "logs" / "worker-0.log"
    assert host.log("worker-0").stat().st_size == on_its_host.stat().st_size


def test_signalled_task_was_asked(host: HostDriver) -> None:
    host.start("worker-0", python(f"print('up', flush=True); {SLEEPER}"))
    host.wait_for_line("worker-0")
    host.signal("worker-0", signal.SIGUSR1)
    assert host.exited("worker-0").asked


def test_exit_carries_its_exception(host: HostDriver) -> None:
    file = host.home / RUN / "exceptions" / "worker-0.json"
    writes = f"open({str(file)!r}, 'w').write('{{\"type\": \"ValueError\"}}')"
    for program, expected in ((writes, {"type": "ValueError"}), ("", None)):
        host.start("worker-0", python(program), bootstrap={"exception_file": str(file)})
        exited = host.wait_for(Exited, "worker-0")
        host.messages.clear()
        assert (exited.exception and json.loads(exited.exception)) == expected


def test_exception_that_is_no_file_is_none(host: HostDriver) -> None:
    file = host.home / RUN / "exceptions" / "worker-0.json"
    host.start(
        "worker-0", python(f"import os; os.mkfifo({str(file)!r})"), bootstrap={"exception_file": str(file)}
    )
    assert not host.wait_for(Exited, "worker-0").exception
    host.start("worker-1", python(f"import os; os.symlink('/etc/hostname', {str(file) + '1'!r})"))
    host.start(
        "worker-2",
        python(f"import os; os.symlink('/etc/hostname', {str(file) + '2'!r})"),
        bootstrap={"exception_file": str(file) + "2"},
    )
    assert not host.wait_for(Exited, "worker-2").exception


def test_shortened_log_is_shortened_here(host: HostDriver) -> None:
    program = """
import os, sys
os.write(1, b"first " * 1000 + b"up\\n")
sys.stdin = open(sys.argv[1]); sys.stdin.read()
os.ftruncate(1, 0)
os.write(1, b"second\\n")
"""
    fifo = host.directory / "go"
    os.mkfifo(fifo)
    host.start("worker-0", [*python(program), str(fifo)])
    host.wait_for_line("worker-0")
    fifo.write_text("")
    host.wait_for(Exited, "worker-0")
    assert host.text("worker-0") == "second\n"


def test_order_creates_the_directories_that_it_names(host: HostDriver) -> None:
    scratch = host.home / RUN / "scratch" / "worker-0"
    host.start(
        "worker-0", python(f"import os; print(oct(os.stat({str(scratch)!r}).st_mode))"), scratch=str(scratch)
    )
    host.wait_for(Exited, "worker-0")
    assert host.text("worker-0") == "0o40700\n"
    outside = host.directory / "not" / "there"
    host.start("worker-1", python(""), scratch=str(outside))
    host.wait_for(Exited, "worker-1")
    assert not outside.parent.exists()


def test_stacks_are_sent_as_text(host: HostDriver) -> None:
    host.start("worker-0", python(f"print('up', flush=True); {SLEEPER}"))
    host.wait_for_line("worker-0")
    host.ask_stacks("worker-0")
    assert host.wait_for(Stacked, "worker-0").length == 0


def test_environment_is_the_users_and_the_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the order, over what the host has; the mark of the host is in it."""
    monkeypatch.setenv("OF_THE_USER", "sécret\udcff")
    with HostDriver(tmp_path, before="OF_THE_HOST=1; export OF_THE_HOST; unset OF_THE_USER; ") as host:
        names = ("OF_THE_USER", "OF_THE_HOST", "ORCH_HOST_DIR")
        host.start("worker-0", python(f"import os; print([os.environb.get(n.encode()) for n in {names}])"))
        host.wait_for(Exited, "worker-0")
        expected = [os.fsencode("sécret\udcff"), b"1", os.fsencode(host.home)]
        assert host.text("worker-0") == f"{expected}\n"


def test_variables_of_this_machine_stay_here() -> None:
    of_the_user = {
        "PATH": "/bin",
        "LANG": "C.UTF-8",
        "PYTHONPATH": "/src",
        "OMP_NUM_THREADS": "2",
        "TMP": "x",
    }
    of_this_machine = (
        *(
            "SLURM_JOB_ID",
            "SLURM_NODELIST",
            "SSH_AUTH_SOCK",
            "SSH_CONNECTION",
            "XDG_RUNTIME_DIR",
            "DBUS_SESSION",
        ),
        *("TMPDIR", "CUDA_VISIBLE_DEVICES", "HOME", "USER", "PWD", "DISPLAY"),
    )
    assert travelling_environ({**of_the_user, **dict.fromkeys(of_this_machine, "here")}) == of_the_user


def test_orders_that_arrive_with_their_run_are_prepared_in_its_environment(host: HostDriver) -> None:
    signal_and_wait(host.pid, signal.SIGSTOP, "T")
    host.link.serve(run_order(RUN, host.directory, log="", environ={"PYTHONPATH": "/of/the/run"}))
    host.start("worker-0", python("import os; print(os.environ['PYTHONPATH'])"), runs_worker=True)
    os.kill(host.pid, signal.SIGCONT)
    assert host.exited("worker-0").exit_code == 0
    assert host.text("worker-0").startswith("/of/the/run:")


# -- the connection


def kinds(host: HostDriver) -> list[type]:
    host.receive()
    return [type(message) for message in host.messages]


def test_link_that_carries_nothing_for_a_while_loses_nothing(tmp_path: Path) -> None:
    with HostDriver(tmp_path, is_piped=True) as host:
        host.start("worker-0", python(COUNTS))
        until(lambda: len(host.text("worker-0")) > 200_000)
        for carrier in host.carriers:
            carrier.suspend()
        until(lambda: LinkSilent in kinds(host))
        for carrier in host.carriers:
            carrier.resume()
        assert host.exited("worker-0").exit_code == 0
        assert host.text("worker-0") == counted()
        assert kinds(host).index(LinkSilent) < kinds(host).index(LinkBack)


@pytest.mark.parametrize("carrier", ["to the host", "from the host", "both"])
@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_lost_link_is_a_lost_host(tmp_path: Path, carrier: str, is_killed: bool) -> None:
    """The agent ends its tasks by itself, also if one direction alone carries nothing."""
    with HostDriver(tmp_path, link_timeout_s=4.0, is_piped=True) as host:
        with nothing_left(host):
            to, back = host.carriers
            for each in {"to the host": [to], "from the host": [back], "both": [to, back]}[carrier]:
                each.kill() if is_killed else each.suspend()
            until(host.has_ended)
            assert is_killed or "it has not answered for" in str(host.link.lost_reason)
        assert host.link.lost_reason


# -- ends


@contextlib.contextmanager
def nothing_left(host: HostDriver) -> Iterator[None]:
    """A task with a grandchild that ignores SIGTERM; after the block, everything on the host is gone."""
    host.start("worker-0", python(DAEMONISES))
    pids = [host.pid_of("worker-0"), host.grandchild_of("worker-0"), host.pid, host.guard]
    assert all(map(lives, pids))
    yield
    until_gone(*pids)
    until(lambda: not host.home.exists())


def test_nothing_is_left_after_leave(host: HostDriver) -> None:
    with nothing_left(host):
        host.link.leave()
        until(host.has_ended)
        assert not host.home.exists()  # the connection ends last
        assert host.link.lost_reason is None


def test_built_in_program_comes_with_the_bundle(host: HostDriver) -> None:
    """The interpreter of the tasks has no tf-orch. The search path of the user is kept, and goes first."""
    bare = [
        sys.executable,
        "-S",
        "-P",
        "-c",
        "import os, worker; print(os.environ['PYTHONPATH'], worker.__file__)",
    ]
    host.start("worker-0", bare, {"PYTHONPATH": "/of/the/user"}, runs_worker=True)
    assert host.exited("worker-0").exit_code == 0
    path, file = host.text("worker-0").split()
    assert path == f"/of/the/user:{Path(file).parents[1]}"
    host.start("worker-1", bare)
    assert host.exited("worker-1").exit_code == 1


@pytest.mark.parametrize("killed", ["agent", "agent and guard", "guard and agent", "guard", "stopped agent"])
def test_nothing_is_left_after_a_kill(tmp_path: Path, killed: str) -> None:
    """If both are killed, the next start on the host clears up."""
    with HostDriver(tmp_path / "first", link_timeout_s=8.0 if killed == "stopped agent" else 60.0) as host:
        with nothing_left(host):
            if killed == "stopped agent":
                os.kill(host.pid, signal.SIGSTOP)
            else:
                pids = {"agent": host.pid, "guard": host.guard}
                for name in killed.split(" and "):
                    os.kill(pids[name], signal.SIGKILL)
            until(host.has_ended)
            if " and " in killed:
                until_gone(host.pid_of("worker-0"))
                with HostDriver(tmp_path / "second"):
                    assert not host.home.exists()
        assert host.link.lost_reason


def test_guard_notices_the_end_of_an_agent_that_was_stopped(tmp_path: Path) -> None:
    """However long an agent may be stopped."""
    with HostDriver(tmp_path, link_timeout_s=600.0) as host, nothing_left(host):
        os.kill(host.pid, signal.SIGSTOP)
        until(lambda: psutil.Process(host.pid).status() == psutil.STATUS_STOPPED)
        os.kill(host.pid, signal.SIGKILL)
        until(host.has_ended)


def test_nothing_is_left_when_the_supervisor_is_gone(tmp_path: Path) -> None:
    host = HostDriver(tmp_path)
    host.__enter__()
    with nothing_left(host):
        host.close()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_earlier_agent_of_a_run_is_ended_before_its_next_one(tmp_path: Path, is_stopped: bool) -> None:
    """Its link is lost, but it has not noticed that."""
    with HostDriver(tmp_path / "first", name="run") as first:
        with nothing_left(first):
            if is_stopped:
                os.kill(first.pid, signal.SIGSTOP)
            with HostDriver(tmp_path / "second", name="run"):
                assert not first.home.exists()
        with (
            HostDriver(tmp_path / "third", name="run") as third,
            HostDriver(tmp_path / "other", name="other"),
        ):
            assert third.home.exists()


def test_directory_whose_processes_are_not_written_yet_stops_no_start(tmp_path: Path) -> None:
    earlier = Path(f"/tmp/orch-agent-{os.geteuid()}-{Opening('run', 'there', 1.0).agent}-earlier")
    earlier.mkdir(mode=0o700)
    (earlier / "processes").write_text("4711")
    lock = os.open(earlier, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        with HostDriver(tmp_path, name="run") as host:
            assert host.home.exists()
    finally:
        os.close(lock)
        shutil.rmtree(earlier)


def test_end_order_ends_all(host: HostDriver) -> None:
    host.start("worker-0", python(DAEMONISES))
    pids = [host.pid_of("worker-0"), host.grandchild_of("worker-0")]
    host.link.send(Stop(0.0))
    assert host.wait_for(Empty).swept == 1
    until_gone(*pids)


# -- what others can see


def test_directory_of_an_agent_is_private(host: HostDriver) -> None:
    modes = {name: stat.S_IMODE((host.home / name).stat().st_mode) for name in ("", "agent.log")}
    assert modes == {"": 0o700, "agent.log": 0o600}


def test_nothing_listens_for_the_link(host: HostDriver) -> None:
    processes = (psutil.Process(host.guard), psutil.Process(host.pid))
    assert not [found for each in processes for found in each.net_connections("inet")]
    assert not [path for path in host.home.rglob("*") if path.is_socket()]


@needs_root
def test_directory_of_another_user_is_not_swept(tmp_path: Path) -> None:
    """It has the name of an agent's, and names a process of this user as its own."""
    victim = subprocess.Popen(["sleep", "600"])
    stat = read_stat(victim.pid)
    assert stat is not None
    theirs = Path(f"/tmp/orch-agent-{os.geteuid()}-{Opening('run', 'there', 1.0).agent}-another")

    def make() -> None:
        theirs.mkdir()
        (theirs / "processes").write_text(f"{victim.pid} {stat.start_ticks}\n")

    as_user(54_321, make)
    try:
        with HostDriver(tmp_path, name="run"):
            assert victim.poll() is None
            assert (theirs / "processes").exists()
    finally:
        shutil.rmtree(theirs)
        victim.kill()
        victim.wait()


def test_no_secret_is_in_a_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_OF_THE_USER", "very-secret")
    with HostDriver(tmp_path) as host:
        processes = [psutil.Process(host.guard), psutil.Process(host.pid)]
        words = " ".join(" ".join(process.cmdline()) for process in processes)
        assert sys.executable in words
        assert "very-secret" not in words
        assert [process.name() for process in processes] == ["orch-guard", "orch-agent"]


def test_interpreter_of_the_agent_is_isolated(host: HostDriver) -> None:
    assert {"-I", "-S"} <= set(psutil.Process(host.pid).cmdline())
    assert psutil.Process(host.pid).exe() == str(Path(sys.executable).resolve())
