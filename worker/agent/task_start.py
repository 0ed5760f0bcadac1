"""Starts a task: its environment, its descriptors, and a process in its own session that is killed with the agent."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from worker.agent.run_logs import RunFile, open_log
from worker.bootstrap.terminal import take_control
from worker.wire.facts import Identity
from worker.wire.messages import TaskOrder

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
COMMAND_NOT_FOUND, COMMAND_NOT_RUNNABLE = 127, 126  # as shells have it
_EVALUATOR = "evaluator"
_LOOPBACK = "127.0.0.1"
NO_PROXY = ("no_proxy", "NO_PROXY", "no_grpc_proxy")
PROGRESS_VARIABLE, DESCRIPTORS_VARIABLE = "ORCH_PROGRESS_FD", "ORCH_DESCRIPTORS"
BOOTSTRAP_VARIABLE = "ORCH_BOOTSTRAP"
SEARCH_PATH = "PYTHONPATH"
INJECT = Path(__file__).resolve().parents[1] / "bootstrap" / "inject"
_libc = ctypes.CDLL(None, use_errno=True)


class StartFailed(Exception):
    """The process could not be started; `exit_code` is the one that a shell would return."""

    def __init__(self, reason: str, exit_code: int) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


class Cluster:
    """The addresses by role of the tasks of an attempt, in index order. Makes the variables that name them all."""

    def __init__(self, addresses: Mapping[str, Sequence[str]]) -> None:
        servers = {role: those for role, those in addresses.items() if role != _EVALUATOR}
        # As text, which is made once for thousands of tasks.
        self._of_evaluator, self._of_others = json.dumps(dict(addresses)), json.dumps(servers)
        addresses_of_all = (address for those in addresses.values() for address in those)
        hosts = dict.fromkeys(address.rpartition(":")[0].strip("[]") for address in addresses_of_all)
        self._elsewhere = [host for host in hosts if host != _LOOPBACK]

    def env(self, role: str, index: int, planned: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a task: its TF_CONFIG, and the lists of hosts without a proxy that are `planned`,
        with those of the cluster, because gRPC would use the proxy for them."""
        env = {"TF_CONFIG": self.tf_config(role, index)}
        for name in NO_PROXY:
            listed = planned.get(name, "")
            if self._elsewhere and listed and listed.strip() != "*":
                env[name] = ",".join([listed, *self._elsewhere])
        return env

    def tf_config(self, role: str, index: int) -> str:
        """Return the TF_CONFIG of a task. Only the evaluator's own lists the evaluator, which starts no server."""
        cluster = self._of_evaluator if role == _EVALUATOR else self._of_others
        return f'{{"cluster": {cluster}, "task": {json.dumps({"type": role, "index": index})}}}'


class Descriptors:
    """Owns the descriptors that the client of a run passes to its tasks: those of `names`, pairs of a name and a task
    (None: every task)."""

    def __init__(self, names: Sequence[tuple[str, str | None]] = (), fds: Sequence[int] = ()) -> None:
        self._entries = tuple(zip(names, fds, strict=True))

    def of(self, task: str) -> dict[str, int]:
        """The descriptors of a task by name."""
        return {name: fd for (name, wanted), fd in self._entries if wanted in (None, task)}

    def close(self) -> None:
        entries, self._entries = self._entries, ()
        for _, fd in entries:
            os.close(fd)


@dataclass(frozen=True)
class TaskStart:
    """The order to start a task, with what this agent adds: the variables that name the cluster, the identity of the
    run's directory (see RunFile), the options of the bootstrap, and its own numbers of the task's descriptors."""

    order: TaskOrder
    env: Mapping[str, str] = field(default_factory=dict)
    run_directory: Identity | None = None
    bootstrap: Mapping[str, object] | None = None
    descriptors: Mapping[str, int] = field(default_factory=dict)

    @property
    def log(self) -> RunFile:
        return RunFile(self.order.log, self.run_directory)

    @property
    def stacks_file(self) -> RunFile | None:
        """The file to which the task's bootstrap writes stacks; None without a bootstrap."""
        file = (self.bootstrap or {}).get("stacks_file")
        return RunFile(file, self.run_directory) if isinstance(file, str) else None

    @property
    def output_dirs(self) -> tuple[str, ...]:
        """The known directories that the task writes to: of its log and of its checkpoints."""
        checkpoints = self.order.env.get("ORCH_CHECKPOINT_DIR")
        log_dir = str(Path(self.order.log).parent)
        return (log_dir,) if checkpoints is None else (log_dir, checkpoints)

    def environ(self) -> dict[str, str]:
        """The complete environment of the task."""
        whole = {**os.environ, **self.order.env, **self.env}
        return whole if self.bootstrap is None else whole | injected_env(self.bootstrap, whole)


class TaskPipes:
    """The open log and the progress pipe of a task. Owns both until the task has them."""

    def __init__(self, log: RunFile) -> None:
        self.log = open_log(log)
        try:
            self._progress_out, self.progress_in = os.pipe2(os.O_CLOEXEC)
        except OSError:
            os.close(self.log)
            raise
        os.set_blocking(self._progress_out, False)

    def keep_output(self) -> int:
        """Return the read end of the progress pipe, which the caller owns from now on."""
        fd, self._progress_out = self._progress_out, -1
        return fd

    def close_input(self) -> None:
        """Close the log and the write end, of which the task has copies."""
        self._close(self.log, self.progress_in)
        self.log = self.progress_in = -1

    def close(self) -> None:
        self.close_input()
        self._close(self._progress_out)
        self._progress_out = -1

    @staticmethod
    def _close(*fds: int) -> None:
        for fd in fds:
            if fd >= 0:
                os.close(fd)


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    output: int,
    passed: Sequence[int],
    terminal: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a child in its own session that dies with this process.

    It gets `output` as stdout and stderr, or a `terminal` as all three streams, and the descriptors `passed`. Raises
    StartFailed."""
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=output if terminal is None else terminal,
            stderr=output if terminal is None else terminal,
            cwd=cwd,
            env=env,
            start_new_session=True,
            pass_fds=passed,
            preexec_fn=_die_with(os.getpid(), terminal is not None),
        )
    except FileNotFoundError as error:
        if Path(cwd, argv[0]).exists():
            reason = f"{argv[0]}: the interpreter that its first line names does not exist"
        else:
            reason = f"{argv[0] if Path(cwd).is_dir() else cwd}: no such file or directory"
        raise StartFailed(reason, COMMAND_NOT_FOUND) from error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        if error.errno == errno.EAGAIN:
            reason = f"no more processes or threads can be started ({reason})"
        if error.errno == errno.ENOEXEC:
            reason += " (a script needs a first line such as #!/usr/bin/env python3)"
        raise StartFailed(f"{argv[0]}: {reason}", COMMAND_NOT_RUNNABLE) from error


def _die_with(agent: int, has_terminal: bool) -> Callable[[], None]:
    """Return what the child runs between fork and exec, so that the kernel kills it when the agent's thread ends."""
    limits = _original_limits

    def prepare() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != agent:  # the agent died before prctl took effect
            os._exit(1)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        if has_terminal:
            take_control(0)

    return prepare


_original_limits = resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_file_limit() -> None:
    """Raise this process's limit of open files, for three descriptors per task. Tasks keep the user's limit."""
    hard = _original_limits[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def injected_env(bootstrap: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to add to `environ`, a task's environment, so that its interpreter runs the bootstrap first.

    `bootstrap` holds the options of worker/bootstrap/install.py. The bootstrap restores both variables before the
    script starts. An interpreter that ignores PYTHONPATH (-E, -I) or skips site (-S) does not run it.
    """
    original = environ.get(SEARCH_PATH)
    return {
        BOOTSTRAP_VARIABLE: json.dumps({**bootstrap, "pythonpath": original}, separators=(",", ":")),
        # An empty element means the current directory.
        SEARCH_PATH: f"{INJECT}:{original}" if original else str(INJECT),
    }


def become_subreaper() -> None:
    """Make orphans below this process its own children, not those of init."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
