"""Four pretend machines, n0 to n3, on this one. Three run a real sshd, which n0 reaches by `ssh n1`. Needs root.

A machine is a set of namespaces: it has its own network, processes, /proc, host name, /tmp and home directory, and a
monotonic clock that is days off. No namespace has a name outside, so the end of the test process ends all of them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil
from lasting import LASTING
from waiting import PATIENCE_S, until

NEEDED = ("unshare", "nsenter", "ip", "mount", "hostname", "bash", "ssh", "ssh-keygen", "sshd", "rsync")
_HERE = Path(__file__).parent
_DAY_S = 86_400
# Days by which the monotonic clock of a machine is off. The launching machine is neither the first nor the last.
_DAYS = {"n0": 2, "n1": 1, "n2": 3, "n3": 4}
_NETWORK = "10.77.0"
_NO_MACHINE = "02:00:00:00:00:77"
_SESSION = "sshd: "
_SSHD_MARK = "-f/run/sshd_config"
SLURM_DAEMONS = ("munged", "slurmctld", "slurmscriptd", "slurmd")
_CLIENT_CONFIG = """\
Host n*
  User root
  IdentityFile {home}/.ssh/id
  IdentitiesOnly yes
"""
_SERVER_CONFIG = """\
HostKey {home}/.ssh/host_key
AuthorizedKeysFile {home}/.ssh/authorized_keys
PidFile none
StrictModes no
UsePAM no
KbdInteractiveAuthentication no
PermitRootLogin yes
MaxStartups 100
Subsystem sftp internal-sftp
"""


def reason_to_skip() -> str | None:
    """Why the machines cannot be made here."""
    if os.geteuid() != 0:
        return "pretend machines need root"
    if missing := [program for program in NEEDED if _program(program) is None]:
        return f"pretend machines need {', '.join(missing)}: apt-get install openssh-server rsync iproute2"
    probe = subprocess.run([*_unshared(0), "true"], capture_output=True, text=True, check=False)
    return None if probe.returncode == 0 else f"no namespaces here: {probe.stderr.strip()}"


@dataclass(frozen=True)
class Machine:
    """`pid`: its process 1. `home`: its home directory, seen from outside."""

    name: str
    address: str
    pid: int
    home: Path

    @property
    def state(self) -> Path:
        """The state directory of orch, seen from outside."""
        return self.home / ".local/state/orch"

    def words(self, *command: str) -> list[str]:
        """The command line that runs a command on this machine, to be started from outside."""
        namespaces = ("--mount", "--net", "--uts", "--ipc", "--pid", "--time")
        return ["nsenter", "--target", str(self.pid), *namespaces, "--", *command]

    def environ(self, changes: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of the tests, with this machine's home directory and its own places of state."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
        return {
            **kept,
            "HOME": str(self.home.parents[1] / "home"),
            "PYTHONUNBUFFERED": "1",
            **(changes or {}),
        }

    def start(
        self, *command: str, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a command. Its process group holds what it starts, unless that leaves it."""
        return subprocess.Popen(
            self.words(*command), env=self.environ(env), start_new_session=True, **options
        )

    def run(
        self,
        *command: str,
        check: bool = True,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. `cwd` must be shared. AssertionError if it fails, unless `check` is false."""
        if cwd is not None:
            command = ("env", "-C", str(cwd), *command)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = self.start(*command, env=env, **pipes)
        try:
            out, err = process.communicate(stdin, timeout_s)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        done = subprocess.CompletedProcess(command, process.returncode, out.decode(), err.decode())
        assert not check or done.returncode == 0, f"{done} on {self.name}"
        return done

    def processes(self) -> list[psutil.Process]:
        """The live processes of this machine but process 1 and its daemons, with the pids they have outside."""
        return [process for process in self.all_processes() if not _is_daemon(process)]

    def all_processes(self) -> list[psutil.Process]:
        """processes(), the listening sshd and the daemons of Slurm."""
        namespace, found = _processes_of(self.pid), []
        # This is called often, and reads all processes outside: psutil.process_iter() takes ten times as long.
        for name in os.listdir("/proc"):  # noqa: PTH208
            if name.isdigit() and int(name) != self.pid and _is_in(int(name), namespace):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process = psutil.Process(int(name))
                    if process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
        return found

    def command_lines(self) -> list[str]:
        """The command lines of processes()."""
        return [line for process in self.processes() if (line := _command_line(process))]

    def programs(self) -> list[str]:
        """command_lines() without the sessions of sshd, which last until it notices that the other side is gone."""
        return [line for line in self.command_lines() if not line.startswith(_SESSION)]

    def end_sessions(self) -> None:
        """End the sessions of sshd that no program uses any more, as its time-out would."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if _command_line(process).startswith(_SESSION) and not process.children():
                    process.kill()

    def kill_all(self) -> None:
        """Kill what a test has left."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def files(self) -> set[str]:
        """The files of this machine's own places: home, /tmp, /var/tmp, /run, /dev/shm. Without what is shared."""
        home = str(self.home.parents[1] / "home")
        places = (home, "/tmp", "/var/tmp", "/run", "/dev/shm")
        return set(self.run("find", *places, "-xdev", "!", "-type", "d").stdout.splitlines())


class Testbed:
    """The machines, what they share, and the network between them. `close` removes everything."""

    __test__ = False  # not a test class

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # The same path on every machine and outside.
        self.shared = directory / "shared"
        self.machines: dict[str, Machine] = {}
        self._latency = dict.fromkeys(_DAYS, 0.0)
        self._cuts: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._dropping: list[tuple[str, str]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self._make_directories()
            for name in _DAYS:
                self.machines[name] = self._start_machine(name)
            self._switch = self._start_network()
            self._order()
            for name in ("n1", "n2", "n3"):
                text = _SERVER_CONFIG.format(home=directory / "home")
                self.machines[name].run("tee", "/run/sshd_config", stdin=text.encode())
                self.machines[name].run(_program("sshd") or "sshd", _SSHD_MARK, "-E", "/run/sshd.log")
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    @functools.cached_property
    def own_files(self) -> dict[str, set[str]]:
        """The files of each machine when this was first asked for: before any test."""
        return {name: machine.files() for name, machine in self.machines.items()}

    def cut(self, *names: str, to: bool = True, source: bool = True) -> None:
        """Lose all frames to these machines and from them, or those of one direction, without any error."""
        self._cuts = names if to else (), names if source else ()
        self._order()

    def drop_between(self, first: str, second: str) -> None:
        """Let two machines lose what they send to each other, as firewalls do, until heal()."""
        for one, other in ((first, second), (second, first)):
            self._set_neighbour(one, other, _NO_MACHINE)
            self._dropping.append((one, other))

    def heal(self) -> None:
        """Pass all frames on again, without added latency."""
        for one, other in self._dropping:
            self._set_neighbour(one, other, _hardware(other))
        self._dropping.clear()
        self._latency = dict.fromkeys(self._latency, 0.0)
        self.cut()

    def delay(self, name: str, seconds: float) -> None:
        """Let each frame from and to a machine arrive later by this time. A way there and back takes twice as long."""
        self._latency[name] = seconds
        self._order()

    def _set_neighbour(self, name: str, other: str, hardware: str) -> None:
        address = self.machines[other].address
        words = ("ip", "neigh", "replace", address, "lladdr", hardware, "dev", "eth0", "nud", "permanent")
        self.machines[name].run(*words)

    def close(self) -> None:
        """End all machines and the network."""
        for process in reversed(self._processes):
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            process.kill()
            process.wait()
            LASTING.discard(process.pid)
        self._processes.clear()
        for machine in self.machines.values():
            until(lambda pid=machine.pid: not psutil.pid_exists(pid))  # type: ignore[misc]
        shutil.rmtree(self.directory, ignore_errors=True)

    def _make_directories(self) -> None:
        self.shared.mkdir(parents=True)
        for name in _DAYS:
            keys = self.directory / name / "home/.ssh"
            keys.mkdir(parents=True, mode=0o700)
            _make_key(keys / "host_key")
        key = self.directory / "n0/home/.ssh/id"
        _make_key(key)
        known = []
        for name in _DAYS:
            keys = self.directory / name / "home/.ssh"
            shutil.copy(key.with_suffix(".pub"), keys / "authorized_keys")
            known.append(f"{name} {(keys / 'host_key.pub').read_text()}")
        (key.parent / "known_hosts").write_text("".join(known))
        (key.parent / "config").write_text(_CLIENT_CONFIG.format(home=self.directory / "home"))
        for name in _DAYS:
            self._write_etc(self.directory / name / "etc")

    def _write_etc(self, directory: Path) -> None:
        """Write what a machine has in /etc in place of this machine's files."""
        directory.mkdir()
        addresses = "".join(f"{_address(name)} {name}\n" for name in _DAYS)
        (directory / "hosts").write_text(f"127.0.0.1 localhost\n{addresses}")
        (directory / "resolv.conf").write_text("")
        (directory / "nsswitch.conf").write_text("passwd: files\ngroup: files\nshadow: files\nhosts: files\n")
        others = [
            line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("root:")
        ]
        root = f"root:x:0:0:root:{self.directory / 'home'}:/bin/bash"
        (directory / "passwd").write_text("\n".join((root, *others, "")))
        (directory / "shadow").write_text("root:*:20000:0:99999:7:::\nsshd:!:20000::::::\n")
        (directory / "shadow").chmod(0o600)

    def _start_machine(self, name: str) -> Machine:
        directory = self.directory / name
        script = ["bash", str(_HERE / "machine_start.sh"), name, str(directory), str(self.shared)]
        environ = {**os.environ, "HOME": str(self.directory / "home")}
        outer = self._start([*_unshared(_DAYS[name] * _DAY_S), *script], env=environ)
        _read_line(outer)
        (inner,) = psutil.Process(outer.pid).children()
        return Machine(name, _address(name), inner.pid, directory / "home")

    def _start_network(self) -> subprocess.Popen[bytes]:
        switch = (sys.executable, "-I", "-S", str(_HERE / "switch.py"), *_DAYS)
        holder = self._start(["unshare", "--net", "sh", "-c", 'echo; read -r _; exec "$@"', "sh", *switch])
        _read_line(holder)
        lines = []
        for machine in self.machines.values():
            # Each end is made where it belongs, so this machine never has it.
            end = f"address {_hardware(machine.name)} netns {machine.pid}"
            lines.append(f"link add {machine.name} netns {holder.pid} type veth peer name eth0 {end}")
        _ip(lines)
        _ip([f"link set {name} up" for name in self.machines], holder.pid)
        for machine in self.machines.values():
            _ip(self._network_of(machine), machine.pid)
        assert holder.stdin is not None
        holder.stdin.write(b"\n")
        holder.stdin.flush()
        return holder

    def _network_of(self, machine: Machine) -> list[str]:
        # Neighbours stand there for good: a cut network is silent, and no kernel reports an unreachable address.
        neighbours = [
            f"neigh add {other.address} lladdr {_hardware(other.name)} dev eth0 nud permanent"
            for other in self.machines.values()
            if other is not machine
        ]
        return [
            "link set eth0 addrgenmode none",
            "link set eth0 up",
            f"addr add {machine.address}/24 dev eth0",
            *neighbours,
        ]

    def _start(self, words: list[str], **options: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
        self._processes.append(process)
        LASTING.add(process.pid)
        return process

    def _order(self) -> None:
        """Tell the switch which frames are lost or late."""
        order = {"latency": self._latency, "cut_to": self._cuts[0], "cut_from": self._cuts[1]}
        assert self._switch.stdin is not None
        self._switch.stdin.write(json.dumps(order).encode() + b"\n")
        self._switch.stdin.flush()
        _read_line(self._switch)


def _unshared(offset_s: int) -> list[str]:
    namespaces = ("--mount", "--net", "--uts", "--ipc", "--pid", "--mount-proc", "--time")
    return [
        "unshare",
        *namespaces,
        f"--monotonic={offset_s}",
        f"--boottime={offset_s}",
        "--fork",
        "--kill-child",
    ]


def _address(name: str) -> str:
    return f"{_NETWORK}.{10 + int(name[1:])}"


def _hardware(name: str) -> str:
    return f"02:00:00:00:00:0{name[1:]}"


def _make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", path], check=True)


def _ip(lines: list[str], pid: int | None = None) -> None:
    where = [] if pid is None else ["nsenter", "--target", str(pid), "--net"]
    subprocess.run([*where, "ip", "-batch", "-"], input="\n".join(lines).encode(), check=True)


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _read_line(process: subprocess.Popen[bytes]) -> bytes:
    stdout: IO[bytes] | None = process.stdout
    assert stdout is not None
    ready, _, _ = select.select([stdout], [], [], PATIENCE_S)
    line = os.read(stdout.fileno(), 1024) if ready else b""
    assert line, f"{process.args} does not answer"
    return line


def _processes_of(pid: int) -> str:
    """The name of a process's PID namespace."""
    return os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115


def _is_in(pid: int, namespace: str) -> bool:
    try:
        return _processes_of(pid) == namespace
    except OSError:
        return False


def _command_line(process: psutil.Process) -> str:
    """Empty if the process has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def _is_daemon(process: psutil.Process) -> bool:
    """Whether it belongs to Slurm, or is the listening sshd."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name() in SLURM_DAEMONS or _SSHD_MARK in _command_line(process)
    return False
