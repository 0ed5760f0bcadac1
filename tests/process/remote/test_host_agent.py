"""An agent on another host: tasks, their logs, the loss of the link, and nothing left after any end.

The host is this machine, reached by `sh -c`: guard and agent are real.
"""

from __future__ import annotations

import contextlib
import fcntl
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
from lasting import LASTING
from waiting import lives, until, until_gone

from orchestrator.links.agent_link import LinkBack, LinkSilent
from orchestrator.links.client_link import travelling_environ
from orchestrator.links.opening import Opening
from worker.agent.processes import read_stat
from worker.wire.messages import IN_BUNDLE, Exited, Stacked

UP = f"print('up', flush=True); {SLEEPER}"
# Its start files print, set variables and remove one. The first place for temporary files cannot be used.
BEFORE = (
    "echo Welcome; printf 'no newline'; echo oh >&2; OF_THE_HOST=1; TMPDIR=/proc/none; "
    "export OF_THE_HOST TMPDIR; unset OF_THE_USER; "
)
# Prints numbered lines, in pieces of all sizes, for as long as it takes to break a few connections.
COUNTS = """
import sys, time
for number in range(60_000):
    sys.stdout.write(f"line {number} {'x' * (number % 97)}\\n")
    if number % 500 == 0:
        sys.stdout.flush()
        time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostDriver]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OF_THE_USER", "sécret\udcff")
        driver = HostDriver(tmp_path_factory.mktemp("host"), before=BEFORE)
    with driver:
        LASTING.add(driver.connections[0].process.pid)
        yield driver
        LASTING.discard(driver.connections[0].process.pid)


@pytest.fixture
def host(shared: HostDriver) -> Iterator[HostDriver]:
    """A host for all tests that do not end it, in a new attempt."""
    shared.hold(0)
    shared.messages.clear()
    yield shared
    shared.end()


# -- tasks and logs


def test_exit_follows_the_last_byte_of_the_log(host: HostDriver) -> None:
    host.start("exits", python("import sys; print('x' * 3_000_000 + 'end'); sys.exit(7)"))
    exited = host.exited("exits")
    assert (exited.exit_code, exited.asked) == (7, False)
    assert host.text("exits") == "x" * 3_000_000 + "end\n"


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
    host.start("leaves", python(program))
    host.wait_for(Exited, "leaves")
    host.wait_for_line("leaves")
    host.end(60.0)
    on_its_host = host.home / RUN / "logs" / "leaves.log"
    assert host.log("leaves").stat().st_size == on_its_host.stat().st_size > 5_000_000


def test_signalled_task_was_asked_and_stacks_are_sent_as_text(host: HostDriver) -> None:
    host.start("waits", python(UP))
    host.wait_for_line("waits")
    host.ask_stacks("waits")
    assert host.wait_for(Stacked, "waits").length == 0
    host.signal("waits", signal.SIGUSR1)
    assert host.exited("waits").asked


def test_exit_carries_its_exception_unless_that_is_no_file(host: HostDriver) -> None:
    for number, (code, expected) in enumerate(
        (
            ("open(file, 'w').write('{\"type\": \"ValueError\"}')", '{"type": "ValueError"}'),
            ("pass", None),
            ("os.mkfifo(file)", None),
            ("os.symlink('/etc/hostname', file)", None),
        )
    ):
        name = f"raises-{number}"
        file = str(host.home / RUN / "exceptions" / name)
        host.start(name, python(f"import os; file = {file!r}; {code}"), bootstrap={"exception_file": file})
        ended = host.wait_for(Exited, name)
        assert (ended.exit.exit_code, ended.exception or None) == (0, expected), code


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
    host.start("cuts", [*python(program), str(fifo)])
    host.wait_for_line("cuts")
    fifo.write_text("")
    host.wait_for(Exited, "cuts")
    assert host.text("cuts") == "second\n"


def test_order_creates_the_directories_that_it_names(host: HostDriver) -> None:
    scratch = str(host.home / RUN / "scratch" / "here")
    host.start("here", python(f"import os; print(oct(os.stat({scratch!r}).st_mode))"), scratch=scratch)
    outside = host.directory / "not" / "there"
    host.start("outside", python(""), scratch=str(outside))
    for name in ("here", "outside"):
        host.wait_for(Exited, name)
    assert host.text("here") == "0o40700\n"
    assert not outside.parent.exists()


def test_environment_is_the_users_and_the_hosts(host: HostDriver) -> None:
    """As in the order, over what the host has; the mark of the host is in it."""
    names = ("OF_THE_USER", "OF_THE_HOST", "ORCH_HOST_DIR")
    host.start("looks", python(f"import os; print([os.environb.get(n.encode()) for n in {names}])"))
    host.wait_for(Exited, "looks")
    expected = [os.fsencode("sécret\udcff"), b"1", os.fsencode(host.home)]
    assert host.text("looks") == f"{expected}\n"


def test_variables_of_this_machine_stay_here() -> None:
    names = ("PATH", "LANG", "PYTHONPATH", "OMP_NUM_THREADS", "TMP")
    of_this_machine = """SLURM_JOB_ID SLURM_NODELIST SSH_AUTH_SOCK SSH_CONNECTION XDG_RUNTIME_DIR DBUS_SESSION
        TMPDIR CUDA_VISIBLE_DEVICES HOME USER PWD DISPLAY"""
    of_the_user = dict.fromkeys(names, "x")
    assert (
        travelling_environ({**of_the_user, **dict.fromkeys(of_this_machine.split(), "here")}) == of_the_user
    )


def test_examples_come_with_the_bundle(host: HostDriver) -> None:
    """The interpreter of the tasks need not have tf-orch."""
    words = [sys.executable, "-S", "-c", "import sys; print(open(sys.argv[1]).read())"]
    host.start("worker-0", [*words, f"{IN_BUNDLE}worker/examples/fit.py"])
    assert host.exited("worker-0").exit_code == 0
    assert "import common" in host.text("worker-0")


# -- what others can see


def test_others_see_and_reach_nothing(host: HostDriver) -> None:
    modes = {name: stat.S_IMODE((host.home / name).stat().st_mode) for name in ("", "agent.log")}
    assert modes == {"": 0o700, "agent.log": 0o600}
    assert host.home.parent == Path("/tmp") and host.home.name.startswith(f"orch-agent-{os.geteuid()}-")
    processes = [psutil.Process(host.guard), psutil.Process(host.pid)]
    assert [process.name() for process in processes] == ["orch-guard", "orch-agent"]
    for each in processes:
        assert not each.net_connections("inet")
        words = each.cmdline()
        assert sys.executable in words and "sécret" not in " ".join(words)
    assert not [path for path in host.home.rglob("*") if path.is_socket()]
    # The agent's interpreter is isolated.
    assert {"-I", "-S"} <= set(words)
    assert processes[1].exe() == str(Path(sys.executable).resolve())


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


# -- the connection and the ends


@contextlib.contextmanager
def nothing_left(host: HostDriver) -> Iterator[None]:
    """A task with a grandchild that ignores SIGTERM; after the block, everything on the host is gone."""
    host.start("worker-0", python(DAEMONISES))
    pids = [host.pid_of("worker-0"), host.grandchild_of("worker-0"), host.pid, host.guard]
    assert all(map(lives, pids))
    yield
    until_gone(*pids)
    until(lambda: not host.home.exists())


def test_link_that_carries_nothing_for_a_while_loses_nothing(tmp_path: Path) -> None:
    def kinds() -> list[type]:
        host.receive()
        return [type(message) for message in host.messages]

    with HostDriver(tmp_path, is_piped=True) as host:
        host.start("worker-0", python(COUNTS))
        until(lambda: len(host.text("worker-0")) > 200_000)
        for carrier in host.carriers:
            carrier.suspend()
        until(lambda: LinkSilent in kinds())
        for carrier in host.carriers:
            carrier.resume()
        assert host.exited("worker-0").exit_code == 0
        text = "".join(f"line {number} {'x' * (number % 97)}\n" for number in range(60_000))
        assert host.text("worker-0") == text
        assert kinds().index(LinkSilent) < kinds().index(LinkBack)


@pytest.mark.parametrize(
    "lost", ["killed to", "killed back", "stopped to", "stopped back", "stopped to back"]
)
def test_lost_link_is_a_lost_host(tmp_path: Path, lost: str) -> None:
    """The agent ends its tasks by itself, also if the direction to or from it alone carries nothing."""
    with HostDriver(tmp_path, link_timeout_s=4.0, is_piped=True) as host:
        with nothing_left(host):
            for name, carrier in zip(("to", "back"), host.carriers, strict=True):
                if name in lost.split():
                    carrier.kill() if "killed" in lost else carrier.suspend()
            until(host.has_ended)
            assert "killed" in lost or "it has not answered for" in str(host.link.lost_reason)
        assert host.link.lost_reason


def test_nothing_is_left_after_leave(tmp_path: Path) -> None:
    """Orders that arrive with their run are prepared in its environment."""
    with HostDriver(tmp_path) as host, nothing_left(host):
        signal_and_wait(host.pid, signal.SIGSTOP, "T")
        host.link.serve(run_order(RUN, host.directory, log="", environ={"PYTHONPATH": "/of/the/run"}))
        host.start("worker-1", python("import os; print(os.environ['PYTHONPATH'])"))
        os.kill(host.pid, signal.SIGCONT)
        assert host.exited("worker-1").exit_code == 0
        assert host.text("worker-1").strip() == "/of/the/run"
        host.link.leave()
        until(host.has_ended)
        assert not host.home.exists()  # the connection ends last
        assert host.link.lost_reason is None


@pytest.mark.parametrize("killed", ["agent", "agent and guard", "guard", "stopped agent"])
def test_nothing_is_left_after_a_kill(tmp_path: Path, killed: str) -> None:
    """If both are killed, the next start on the host clears up. The guard notices the end of an agent however long that
    was stopped."""
    with HostDriver(tmp_path / "first", link_timeout_s=600.0) as host:
        with nothing_left(host):
            if killed == "stopped agent":
                signal_and_wait(host.pid, signal.SIGSTOP, "T")
            if "agent" in killed:
                os.kill(host.pid, signal.SIGKILL)
            if "guard" in killed:
                os.kill(host.guard, signal.SIGKILL)
            until(host.has_ended)
            if " and " in killed:
                until_gone(host.pid_of("worker-0"))
                with HostDriver(tmp_path / "second"):
                    assert not host.home.exists()
        assert host.link.lost_reason


def test_stopped_agent_is_ended_when_it_is_silent(tmp_path: Path) -> None:
    with HostDriver(tmp_path, link_timeout_s=4.0) as host, nothing_left(host):
        os.kill(host.pid, signal.SIGSTOP)
        until(host.has_ended)


def test_nothing_is_left_when_the_supervisor_is_gone(tmp_path: Path) -> None:
    host = HostDriver(tmp_path)
    host.__enter__()
    with nothing_left(host):
        host.close()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_earlier_agent_of_a_run_is_ended_before_its_next_one(tmp_path: Path, is_stopped: bool) -> None:
    """Its link is lost, but it has not noticed that."""
    with HostDriver(tmp_path / "first", name="run") as first, nothing_left(first):
        if is_stopped:
            os.kill(first.pid, signal.SIGSTOP)
        with HostDriver(tmp_path / "second", name="run") as second:
            assert not first.home.exists()
            if not is_stopped:
                with HostDriver(tmp_path / "other", name="other"):
                    assert second.home.exists()


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
