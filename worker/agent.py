"""The agent: parent and reaper of all tasks on this host, holder of their ports, dead-man's switch.

Speaks JSON lines over stdin and stdout, each with the run's id; the other end is the supervisor, near or far:

    in:  run {failure_grace_s, log, environ}
         preload {argv, env, cwd, modules, log}                     hold {attempt, count, mode}
         start {task, argv, env, cwd, log, port, serves, bootstrap, fork}                      stop {grace_s}
    out: hello {host, pid, cores}      held {attempt, ports}        hold_failed {reason}
         preloaded {modules, seconds}  not_preloaded {reason}
         started {task, pid, start_ticks, method}                   start_failed {task, exit_code, reason}
         listening {task}              progress {task, progress}    sample {mono, tasks}
         exited {task, exit_code, signal, order, mono, peers}       empty {swept}

End of file, SIGTERM, SIGINT or SIGHUP: end everything, then leave. One thread: PR_SET_PDEATHSIG watches the thread
that forked. Runs under orch's interpreter; standard library and portpicker only, since it must never be slow.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import time
from collections.abc import Iterable
from typing import Any

from worker import task_process
from worker.forks import Forked, Forks, NotForked, NotPreloaded, Outcome, Preloaded
from worker.ports import HeldPorts, PortsExhausted
from worker.preload_link import PreloadOrder
from worker.processes import all_processes, tree_states
from worker.progress_inbox import ProgressInbox
from worker.readiness import Readiness
from worker.sampling import Sampler
from worker.stream import Stream
from worker.task_process import StartFailed, TaskOrder, TaskProcess
from worker.teardown import Teardown

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_LEAVING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Agent:
    """The loop and what it owns: tasks, held ports, the stream, one teardown at a time."""

    def __init__(self, run_id: str, failure_grace_s: float) -> None:
        self._run_id = run_id
        self._failure_grace_s = failure_grace_s
        self._tasks: dict[str, TaskProcess] = {}
        self._by_fd: dict[int, TaskProcess] = {}
        self._ports = HeldPorts()
        self._poller = select.epoll()
        self._forks = Forks(self._poller)
        self._told_reasons: set[str] = set()
        self._exits = 0
        self._teardown: Teardown | None = None
        self._leaving = False
        self._stream = Stream(_STDIN, _STDOUT, self._poller)
        self._readiness = Readiness(time.monotonic())
        self._sampler = Sampler(time.monotonic())
        self._progress = ProgressInbox(self._poller)
        self._signal_fd = -1
        self._has_failed = False

    def run(self) -> None:
        """Serve until the stream ends and nothing is left."""
        with self._ports, self._poller:
            self._watch_signals()
            self._send(
                "hello", host=socket.gethostname(), pid=os.getpid(), cores=len(os.sched_getaffinity(0))
            )
            while not (self._leaving and self._teardown is None):
                self._turn()
            self._forks.close()
            self._stream.flush()

    # -- the loop

    def _turn(self) -> None:
        self._stream.flush()
        timeout = self._next_wake() - time.monotonic()
        # epoll hands out what became ready first first: exits arrive in their true order.
        for fd, _ in self._poller.poll(max(0.0, timeout), 1024):
            self._serve(fd)
        self._reap_orphans()
        now = time.monotonic()
        if self._teardown is not None:
            self._advance_teardown(now)
        else:
            self._watch_tasks(now)
        self._forward_progress(now)

    def _next_wake(self) -> float:
        wakes = [self._sampler.due if self._tasks else float("inf")]
        if self._teardown is not None:
            wakes.append(self._teardown.due)
        elif any(not task.is_ready for task in self._tasks.values()):
            wakes.append(self._readiness.due)
        wakes.append(self._progress.due)
        return min(min(wakes), time.monotonic() + 3600)

    def _serve(self, fd: int) -> None:
        if self._stream.serves(fd):
            self._read_stream(fd)
        elif fd == self._signal_fd:
            self._read_signals()
        elif self._forks.serves(fd):
            self._take_outcomes(self._forks.serve(fd))
        else:
            self._serve_task(fd)

    def _serve_task(self, fd: int) -> None:
        task = self._by_fd.get(fd)
        if task is None:
            return
        if fd == task.pidfd:
            self._exited(task)
        elif fd == task.progress_fd:
            self._progress.read(task)
            if task.progress_fd < 0:
                del self._by_fd[fd]

    def _watch_signals(self) -> None:
        self._signal_fd, signals_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(signals_in, warn_on_full_buffer=False)
        for number in (*_LEAVING_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self._poller.register(self._signal_fd, select.EPOLLIN)

    def _read_signals(self) -> None:
        numbers = os.read(self._signal_fd, 4096)
        if any(number in numbers for number in _LEAVING_SIGNALS):
            # The tasks' ends from here on are this agent's doing: only its own end is news.
            self._stream.fall_silent()
            self._leave()

    def _leave(self) -> None:
        """Nobody is there to ask any more: end everything, soon."""
        self._leaving = True
        self._forks.kill_preloader()
        self._begin_teardown(self._failure_grace_s)

    # -- the stream

    def _read_stream(self, fd: int) -> None:
        messages, is_there = self._stream.read(fd)
        for message in messages:
            if message["type"] == "run":
                self._adopt(message)
            elif message.get("run_id") == self._run_id:
                self._obey(message)
        if not is_there:
            self._leave()

    def _adopt(self, message: dict[str, Any]) -> None:
        """Serve this run from now on: the first one, or the next when nothing of the last is left."""
        self._run_id = message["run_id"]
        self._failure_grace_s = float(message["failure_grace_s"])
        self._exits = 0
        self._told_reasons.clear()
        os.environ.clear()
        for name, value in message["environ"].items():
            os.environb[name.encode("latin-1")] = value.encode("latin-1")
        if message.get("log"):
            log = os.open(message["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            os.dup2(log, _STDERR)
            os.close(log)

    def _obey(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "hold":
                self._hold(message)
            case "preload":
                self._preload(message)
            case "start":
                self._start(message)
            case "stop":
                self._begin_teardown(float(message["grace_s"]))

    def _send(self, kind: str, **fields: object) -> None:
        self._stream.send({"type": kind, "run_id": self._run_id, **fields})

    # -- ports and tasks

    def _hold(self, message: dict[str, Any]) -> None:
        try:
            ports = self._ports.hold(int(message["count"]), message["mode"])
        except (PortsExhausted, OSError) as error:
            self._send("hold_failed", reason=str(error))
        else:
            self._has_failed = False  # an attempt of its own
            self._send("held", attempt=message["attempt"], ports=ports)

    def _preload(self, message: dict[str, Any]) -> None:
        order = PreloadOrder.here(
            message["argv"], message["env"], message["cwd"], message["modules"], message.get("script_env", {})
        )
        self._take_outcomes(self._forks.preload(order, message["log"]))

    def _start(self, message: dict[str, Any]) -> None:
        if self._teardown is not None:
            return  # the stop was quicker
        order = TaskOrder(
            name=message["task"],
            argv=message["argv"],
            env=message["env"],
            cwd=message["cwd"],
            log=message["log"],
            port=message["port"],
            serves=message["serves"],
            bootstrap=message.get("bootstrap"),
            fork=message.get("fork", False),
        )
        if order.fork:
            self._take_outcomes(self._forks.fork(order))
        else:
            self._spawn(order)

    def _take_outcomes(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            match outcome:
                case Preloaded(modules, seconds):
                    self._send("preloaded", modules=modules, seconds=seconds)
                case NotPreloaded(reason):
                    self._tell_not_preloaded(reason)
                case Forked(task):
                    self._started(task)
                case NotForked(order, reason):
                    self._tell_not_preloaded(reason)
                    self._spawn(order)

    def _tell_not_preloaded(self, reason: str) -> None:
        """Once: what keeps one task from being forked mostly keeps all."""
        if reason not in self._told_reasons:
            self._told_reasons.add(reason)
            self._send("not_preloaded", reason=reason)

    def _spawn(self, order: TaskOrder) -> None:
        try:
            task = task_process.start(order)
        except (StartFailed, OSError) as error:
            code = error.exit_code if isinstance(error, StartFailed) else task_process.COMMAND_NOT_RUNNABLE
            self._send("start_failed", task=order.name, exit_code=code, reason=str(error))
            self._exits += 1  # it has ended, in its place among the others
            return
        self._started(task)

    def _started(self, task: TaskProcess) -> None:
        self._tasks[task.name] = task
        for fd in (task.pidfd, task.progress_fd):
            self._by_fd[fd] = task
            self._poller.register(fd, select.EPOLLIN)
        self._readiness.hasten(task.started_mono)
        self._send("started", task=task.name, pid=task.pid, start_ticks=task.start_ticks, method=task.method)

    def _exited(self, task: TaskProcess) -> None:
        mono = time.monotonic()
        self._progress.read_last(task)
        self._forward_progress(mono, at_once=True)
        if self._teardown is not None and self._teardown.is_killing:
            # Its group must still be hit while its pid is surely its own.
            task.signal_group(signal.SIGKILL)
        status = task.reap()
        if status is None:
            return  # the event was of a descriptor that had this number before, in the same batch
        exit_code, number = status
        peers = self._states_beside(task) if exit_code != 0 else {}
        self._forget(task)
        self._send(
            "exited",
            task=task.name,
            exit_code=exit_code,
            signal=number,
            order=self._exits,
            mono=mono,
            peers=peers,
        )
        self._exits += 1

    def _states_beside(self, failed: TaskProcess) -> dict[str, str]:
        """The state letters of the other tasks when the first one fails: what they were before it was torn down."""
        if self._has_failed or self._teardown is not None:
            return {}
        self._has_failed = True
        peers = [peer for peer in self._tasks.values() if peer is not failed]
        states = tree_states((peer.pid for peer in peers), all_processes())
        return {peer.name: states[peer.pid] for peer in peers}

    def _forget(self, task: TaskProcess) -> None:
        for fd in (task.pidfd, task.progress_fd):
            if fd >= 0:
                del self._by_fd[fd]
                self._poller.unregister(fd)
        task.close()
        del self._tasks[task.name]

    def _reap_orphans(self) -> None:
        """Descendants whose parents died are children of this process now; let none stay a zombie."""
        leaders = {task.pid for task in self._tasks.values()}
        while True:
            try:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            # A leader's status is read when its pidfd says so, in order.
            if info is None or info.si_pid in leaders:
                return
            if not self._forks.reap(info.si_pid):
                os.waitpid(info.si_pid, 0)

    # -- teardown

    def _begin_teardown(self, grace_s: float) -> None:
        now = time.monotonic()
        self._forks.call_off()
        if self._teardown is None:
            spared = None if self._leaving else self._forks.pid
            self._teardown = Teardown(os.getpid(), now, grace_s, self._failure_grace_s, spared)
            self._teardown.ask(self._tasks.values())
        else:
            self._teardown.hasten(now + grace_s)
        self._teardown.due = now

    def _advance_teardown(self, now: float) -> None:
        teardown = self._teardown
        if teardown is None or not teardown.advance(now, self._tasks.values()):
            return
        self._teardown = None
        self._ports.close()
        self._send("empty", swept=teardown.swept)

    # -- watching

    def _watch_tasks(self, now: float) -> None:
        waiting = [task for task in self._tasks.values() if not task.is_ready]
        for task in self._readiness.newly_ready(now, waiting):
            task.is_ready = True
            self._send("listening", task=task.name)
        for sample in self._sampler.samples(now, list(self._tasks.values())):
            self._send("sample", mono=now, tasks=sample)

    def _forward_progress(self, now: float, at_once: bool = False) -> None:
        for name, progress in self._progress.take(now, at_once).items():
            self._send("progress", task=name, progress=progress)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m worker.agent", description=__doc__.splitlines()[0])
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--failure-grace", type=float, required=True, metavar="SECONDS")
    arguments = parser.parse_args()
    task_process.become_subreaper()
    task_process.raise_file_limit()
    Agent(arguments.run_id, arguments.failure_grace).run()


if __name__ == "__main__":
    main()
    # Nothing is left to flush or to free: the run's end waits for this process to be gone.
    os._exit(0)
