"""Another ordinary user of this machine cannot read, change, stop or imitate a live run. Two real users."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import signal
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from acting_as import as_user, needs_root
from orch_within import run_within
from users import ORDINARY, User
from waiting import child_with, lives, until

pytestmark = needs_root

# No other test uses these users, so that all their files and processes are of these tests.
VICTIM, ATTACKER = ORDINARY + 10, ORDINARY + 11
SECRET = "hunter2"
DENIED = {errno.EACCES, errno.EPERM}
_PTRACE_ATTACH = 16


@dataclass(frozen=True)
class Victim:
    """A live run of two tasks in a directory where all users may create files."""

    user: User
    run: Path
    pids: dict[str, int]
    ports: tuple[int, ...]

    @property
    def state(self) -> Path:
        return self.user.home / "state/orch"

    @property
    def places(self) -> list[Path]:
        """Everything in the run's directory and in the state directory."""
        roots = (self.run, self.state / "names", self.state / "runs")
        return sorted({path for root in roots for path in (root, *root.rglob("*"))})


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="orch-shared-"))
    directory.chmod(0o1777)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def victim(shared: Path) -> Iterator[Victim]:
    """Only the modes of the run's own directories protect it: those above are open to all users."""
    with User(VICTIM, shared) as user:
        state = user.home / "state"
        state.mkdir()
        os.chown(state, VICTIM, VICTIM)
        script = user.script("train.py", f"import time\nprint({SECRET!r}, flush=True)\ntime.sleep(600)")
        words = ("--env", f"MY_API_KEY={SECRET}", "--log-dir", str(shared), "--", script)
        pointer = user.detached("-n", "2", *words)
        run = pointer.resolve()
        user.until_logged(run, SECRET)
        tasks = user.tasks(run)
        for directory in (user.home, state, state / "orch", state / "orch/runs"):
            directory.chmod(0o755)
        supervisor = json.loads((run / "run.json").read_text())["supervisor_pid"]
        agent = child_with(supervisor, "worker.agent.agent")
        assert agent is not None
        pids = {"supervisor": supervisor, "agent": agent} | {task["task"]: task["pid"] for task in tasks}
        ports = tuple(int(task["address"].rpartition(":")[2]) for task in tasks)
        yield Victim(user, run, pids, ports)
        (state / "orch/runs").chmod(0o700)


def is_refused(actions: dict[str, Callable[[], object]], allowed: set[int] = DENIED) -> None:
    """Let the attacker try each action. Each has to fail with one of these errors."""

    def attempt() -> dict[str, int]:
        found = {}
        for name, action in actions.items():
            try:
                action()
                found[name] = 0
            except OSError as error:
                found[name] = error.errno or -1
        return found

    assert actions
    done = {name: error for name, error in as_user(ATTACKER, attempt).items() if error not in allowed}
    assert done == {}


def test_attacker_can_reach_the_directory_of_the_run(victim: Victim, shared: Path) -> None:
    """Otherwise the other tests would prove nothing."""
    assert as_user(ATTACKER, lambda: (shared / victim.run.name).exists())
    assert as_user(ATTACKER, lambda: (victim.state / "runs" / victim.run.name).is_symlink())


def test_files_of_a_run_cannot_be_read(victim: Victim) -> None:
    places = [path for path in victim.places if path not in (victim.state / "runs", victim.run)]
    assert any(path.name == "events.jsonl" for path in places)
    # The pointer itself can be read where the user opened the directory of the pointers.
    within = [path for path in places if not path.is_symlink()]
    is_refused(
        {f"open {path}": lambda path=path: os.open(path, os.O_RDONLY | os.O_NONBLOCK) for path in within}
    )
    is_refused({f"list {path}": lambda path=path: list(path.iterdir()) for path in within if path.is_dir()})
    is_refused({"list the run": lambda: list(victim.run.iterdir())})


def test_files_of_a_run_cannot_be_changed_or_linked(victim: Victim, shared: Path) -> None:
    actions: dict[str, Callable[[], object]] = {}
    aside, own = shared / "aside", shared / "own"
    as_user(ATTACKER, lambda: own.write_text("planted"))
    for path in victim.places:
        actions |= {
            f"write {path}": lambda path=path: os.open(path, os.O_WRONLY | os.O_NONBLOCK),
            f"create in {path}": lambda path=path: os.open(path / "planted", os.O_CREAT | os.O_WRONLY),
            f"replace {path}": lambda path=path: own.rename(path),
            f"move {path}": lambda path=path: path.rename(aside),
            f"link {path}": lambda path=path: os.link(path, aside, follow_symlinks=False),
            f"chmod {path}": lambda path=path: path.chmod(0o777),
        }
    # A directory cannot be opened for writing by anybody, nor contain files if it is a file.
    is_refused(actions, {*DENIED, errno.EISDIR, errno.ENOTDIR})
    assert own.read_text() == "planted"
    assert not aside.exists()
    own.unlink()


def test_locks_of_a_run_cannot_be_taken_or_probed(victim: Victim) -> None:
    """Another user who held a lock would keep a name taken, or make a dead run look live."""
    locks = [victim.run / "lock", *(victim.state / "names").iterdir()]
    assert len(locks) == 2
    is_refused({str(path): lambda path=path: os.open(path, os.O_RDONLY) for path in locks})


def test_control_socket_of_a_run_cannot_be_reached(victim: Victim) -> None:
    def connect(path: str) -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)

    control = victim.run / "control"
    assert stat.S_ISSOCK(control.lstat().st_mode)
    is_refused({"connect": lambda: connect(str(control))})


def test_processes_of_a_run_listen_on_no_other_socket(victim: Victim) -> None:
    """An abstract socket would be open to all users. Supervisor and agent talk over an unnamed pair of sockets."""
    names = {
        connection.laddr
        for pid in victim.pids.values()
        for connection in psutil.Process(pid).net_connections("unix")
    }
    assert {name for name in names if name} == {
        name for name in names if name.endswith("/control") and name.startswith("/proc/self/fd/")
    }


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
def test_held_ports_cannot_be_taken(victim: Victim, address: str) -> None:
    options = {"SO_REUSEADDR": (socket.SO_REUSEADDR,), "SO_REUSEPORT": (socket.SO_REUSEPORT,)}
    options |= {"none": (), "both": (socket.SO_REUSEADDR, socket.SO_REUSEPORT)}
    family = socket.AF_INET6 if ":" in address else socket.AF_INET

    def bind(port: int, chosen: tuple[int, ...]) -> None:
        with socket.socket(family) as taken:
            for option in chosen:
                taken.setsockopt(socket.SOL_SOCKET, option, 1)
            taken.bind((address, port))
            taken.listen()

    is_refused(
        {
            f"{port} {name}": lambda port=port, chosen=chosen: bind(port, chosen)
            for port in victim.ports
            for name, chosen in options.items()
        },
        {errno.EADDRINUSE},
    )


def test_processes_of_a_run_cannot_be_signalled(victim: Victim) -> None:
    def by_pidfd(pid: int, number: signal.Signals) -> None:
        signal.pidfd_send_signal(os.pidfd_open(pid), number)

    numbers = (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT)
    everywhere = [(name, pid, number) for name, pid in victim.pids.items() for number in numbers]
    is_refused({f"{name} {n.name}": lambda pid=pid, n=n: os.kill(pid, n) for name, pid, n in everywhere})
    is_refused({f"{name} {n.name}": lambda pid=pid, n=n: by_pidfd(pid, n) for name, pid, n in everywhere})
    assert all(lives(pid) for pid in victim.pids.values())


def test_environment_and_memory_of_a_run_cannot_be_read(victim: Victim) -> None:
    def trace(pid: int) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        if library.ptrace(_PTRACE_ATTACH, pid, None, None) < 0:
            raise OSError(ctypes.get_errno(), "ptrace")

    assert SECRET.encode() in Path(f"/proc/{victim.pids['worker:0']}/environ").read_bytes()
    files = ("environ", "mem", "maps", "io", "stack")
    for name, pid in victim.pids.items():
        proc = Path(f"/proc/{pid}")
        is_refused({f"{name} {file}": lambda path=proc / file: path.read_bytes() for file in files})
        is_refused(
            {f"{name} {link}": lambda path=proc / link: path.readlink() for link in ("cwd", "exe", "root")}
        )
        is_refused({f"{name} fd": lambda path=proc / "fd": list(path.iterdir())})
        is_refused({f"{name} ptrace": lambda pid=pid: trace(pid)})


def test_other_users_see_no_secret_in_command_lines(victim: Victim) -> None:
    def command_lines() -> list[str]:
        return [Path(f"/proc/{pid}/cmdline").read_text() for pid in victim.pids.values()]

    lines = as_user(ATTACKER, command_lines)
    assert all(lines)
    assert SECRET not in "".join(lines)


def test_run_leaves_no_file_in_directories_of_all_users(victim: Victim) -> None:
    """A file with a name that others can guess could be planted before it is created."""
    shared = {Path(place) for place in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm", "/run/lock")}
    entries = {entry for place in shared if place.is_dir() for entry in place.iterdir()}
    theirs = {entry for entry in entries if os.path.lexists(entry) and entry.lstat().st_uid == VICTIM}
    assert theirs == {victim.user.home}


VERBS = ("ls --all", "status RUN", "logs RUN", "down RUN", "kill RUN 0", "prune --all --keep 0", "up -- true")


def test_orch_of_another_user_shows_and_does_nothing(victim: Victim) -> None:
    """With the variable that names the state directory of the victim."""
    traces = Path(tempfile.mkdtemp(prefix="orch-attacker-"))
    os.chown(traces, ATTACKER, ATTACKER)
    environ = {**os.environ, "HOME": str(traces), "XDG_STATE_HOME": str(victim.user.home / "state")}
    for verb in VERBS:
        words = verb.replace("RUN", victim.run.name).split()
        code = as_user(ATTACKER, lambda words=words: run_within(words, traces, environ, traces / "trace"))
        said = "".join((traces / f"trace.{stream}").read_text() for stream in ("out", "err"))
        assert SECRET not in said, verb
        assert code in (2, 3, 125) or (words[0] in ("ls", "prune") and code == 0), (verb, code, said)
        assert all(lives(pid) for pid in victim.pids.values()), verb
        assert not (victim.run / "result.json").exists(), verb
    shutil.rmtree(traces)


def test_planted_directories_in_a_shared_log_directory_are_not_runs(victim: Victim, shared: Path) -> None:
    """The next id can be guessed, but a directory of another user counts for nothing."""
    planted = shared / f"{victim.run.name[:-4]}ffff"

    def plant() -> None:
        (planted / "logs").mkdir(parents=True)
        (planted / "events.jsonl").write_text("{}\n")

    as_user(ATTACKER, plant)
    try:
        pointer = victim.state / "runs" / planted.name
        pointer.symlink_to(planted)
        os.chown(pointer, VICTIM, VICTIM, follow_symlinks=False)
        try:
            assert planted.name not in victim.user("ls", "--all").stdout
            assert victim.user("status", planted.name).returncode == 3
        finally:
            pointer.unlink()
    finally:
        shutil.rmtree(planted)


def test_run_is_still_live_after_all_attacks(victim: Victim) -> None:
    tasks = until(lambda: victim.user.tasks(victim.run))
    assert {task["state"] for task in tasks} == {"running"}
