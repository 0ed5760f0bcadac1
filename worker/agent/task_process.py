"""A task as a process: started in its own session, writing to its log file, killed when its agent dies."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from worker.agent.descriptors import variable
from worker.agent.processes import read_stat
from worker.agent.resource_failures import OomMark
from worker.agent.run_logs import RunFile, open_log
from worker.bootstrap.terminal import TERMINAL, open_again, take_control
from worker.wire.facts import Identity, StartMethod
from worker.wire.messages import TaskOrder

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
COMMAND_NOT_FOUND, COMMAND_NOT_RUNNABLE = 127, 126  # as shells have it
_EVALUATOR = "evaluator"
_LOOPBACK = "127.0.0.1"
NO_PROXY = ("no_proxy", "NO_PROXY", "no_grpc_proxy")
PROGRESS_VARIABLE = "ORCH_PROGRESS_FD"
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
        self._addresses = addresses
        self._texts: dict[bool, str] = {}
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
        task = json.dumps({"type": role, "index": index})
        return f'{{"cluster": {self._text(role == _EVALUATOR)}, "task": {task}}}'

    def _text(self, with_evaluator: bool) -> str:
        """The cluster as JSON, made once for thousands of tasks."""
        if with_evaluator not in self._texts:
            seen = {
                role: those for role, those in self._addresses.items() if role != _EVALUATOR or with_evaluator
            }
            self._texts[with_evaluator] = json.dumps(seen)
        return self._texts[with_evaluator]


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


@dataclass
class TaskProcess:
    """A started task: the pid of its leader (also its process group and session), a pidfd, and its progress pipe."""

    start: TaskStart
    pid: int
    pidfd: int
    start_ticks: int
    progress_fd: int
    started_mono: float
    progress_rest: bytes = b""
    is_ready: bool = False
    method: StartMethod = "spawn"
    was_asked_to_stop: bool = False
    was_signalled: bool = False
    peak_bytes: int | None = None
    over_limit: tuple[int, int] | None = None
    stacks_signal: int | None = None
    oom_mark: OomMark = field(default_factory=OomMark.now)

    @property
    def order(self) -> TaskOrder:
        return self.start.order

    @property
    def name(self) -> str:
        return self.order.task

    def signal_group(self, number: int) -> None:
        """Signal the whole group. The pid cannot have been reused as long as the leader is not reaped."""
        self.was_asked_to_stop = self.was_asked_to_stop or number == signal.SIGTERM
        self.was_signalled = True
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return

    def check_memory(self, used_bytes: int) -> None:
        """Kill the task once it uses more memory than its limit."""
        limit = self.order.memory_limit
        if limit is not None and used_bytes > limit and self.over_limit is None:
            self.over_limit = used_bytes, limit
            self.signal_group(signal.SIGKILL)

    def repeat_sigterm(self) -> None:
        """Send SIGTERM to the leader again if it was sent one: the task reports that it may have lost it."""
        if self.was_asked_to_stop:
            try:
                signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)
            except OSError:
                return

    def stopped_by(self) -> int | None:
        """Return the signal that has stopped the leader, such as SIGSTOP; None if it runs."""
        try:
            # WNOWAIT: ask again and again, and leave the exit to reap().
            info = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        return None if info is None or info.si_code != os.CLD_STOPPED else info.si_status

    def reap(self) -> tuple[int | None, int | None] | None:
        """Return (exit code, signal) of the leader, one of them None; None if it has not exited."""
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if pid == 0:
            return None
        self.peak_bytes = usage.ru_maxrss * 1024
        code = os.waitstatus_to_exitcode(status)
        return (code, None) if code >= 0 else (None, -code)

    def close(self) -> None:
        for fd in (self.pidfd, self.progress_fd):
            if fd >= 0:
                os.close(fd)
        self.pidfd = self.progress_fd = -1


def become_subreaper() -> None:
    """Make orphans below this process its own children, not those of init."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


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


def start(task: TaskStart) -> TaskProcess:
    """Start the task as a new process. Raises StartFailed without the command, the directory or the permission."""
    pipes = TaskPipes(task.log)
    try:
        others = dict(task.descriptors)
        held = others.pop(TERMINAL, None)
        terminal = None if held is None else open_again(held)
        env = {**task.environ(), PROGRESS_VARIABLE: str(pipes.progress_in), **variable(others)}
        try:
            passed = (pipes.progress_in, *others.values())
            process = spawn(task.order.argv, env, task.order.cwd, pipes.log, passed, terminal)
        finally:
            if terminal is not None:
                os.close(terminal)
        # The agent reaps by pid; Popen must neither wait nor warn.
        process.returncode = 0
        return adopted(task, process.pid, os.pidfd_open(process.pid), pipes, "spawn")
    finally:
        pipes.close()


def adopted(task: TaskStart, pid: int, pidfd: int, pipes: TaskPipes, method: StartMethod) -> TaskProcess:
    """Return the task that runs in `pid`, a child of this process that has not been reaped."""
    stat = read_stat(pid)
    return TaskProcess(
        start=task,
        pid=pid,
        pidfd=pidfd,
        start_ticks=stat.start_ticks if stat else 0,
        progress_fd=pipes.keep_output(),
        started_mono=time.monotonic(),
        method=method,
        is_ready=not task.order.serves,
    )


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
