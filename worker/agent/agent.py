"""The agent process: starts and reaps all tasks of this host, holds their ports, and ends them when its stream closes.

worker/wire/messages.py has the messages. At end of file, SIGTERM, SIGINT or SIGHUP it ends all tasks and exits; on
another host also if the supervisor does not answer for too long. In a step of Slurm, it passes SIGTERM on as a notice.
It has one thread, because PR_SET_PDEATHSIG watches the thread that forked. It runs under orch's interpreter and imports
only the standard library and portpicker.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import NoReturn, assert_never

from worker.agent.checks import Checks
from worker.agent.forks import Forks
from worker.agent.network import Network
from worker.agent.ports import HeldPorts, PortsExhausted, Readiness
from worker.agent.processes import ProcessStat, describe
from worker.agent.progress import ProgressInbox
from worker.agent.resource_failures import DiskChecks
from worker.agent.run_logs import RunFile, open_log
from worker.agent.sampling import Sampler
from worker.agent.stack_sources import allow_tracing
from worker.agent.stacks import StackTaking
from worker.agent.stream import ExitSignals, SupervisorStream
from worker.agent.task_start import (
    COMMAND_NOT_RUNNABLE,
    Cluster,
    Descriptors,
    StartFailed,
    TaskStart,
    become_subreaper,
    raise_file_limit,
)
from worker.agent.tasks import LiveTasks, TaskProcess, start
from worker.agent.teardown import Teardown
from worker.wire import messages
from worker.wire.checks import Question
from worker.wire.facts import ExitFacts, Identity
from worker.wire.messages import FromAgent, ToAgent

_STDIN, _STDOUT, _STDERR = 0, 1, 2
# Seconds; a run brings its own value.
_FAILURE_GRACE_S = 0.5


class Agent:
    """The event loop and what it owns: tasks, held ports, the stream, and at most one teardown."""

    def __init__(self, open_stream: Callable[[select.epoll], SupervisorStream]) -> None:
        self._failure_grace_s = _FAILURE_GRACE_S
        self._run_directory: Identity | None = None
        self._ports = HeldPorts()
        self._poller = select.epoll()
        self._tasks = LiveTasks(self._poller)
        self._forks = Forks(self._poller, self._send, self._add, self._spawn)
        self._teardown: Teardown | None = None
        self._refused: list[ProcessStat] = []
        self._leaving = False
        self._stream = open_stream(self._poller)
        self._readiness = Readiness(time.monotonic())
        self._sampler = Sampler(time.monotonic())
        self._disks = DiskChecks()
        self._progress = ProgressInbox(self._poller)
        self._checks = Checks(self._poller, self._send)
        self._stacks = StackTaking(self._poller, self._send)
        self._descriptors = Descriptors()
        self._cluster = Cluster({})
        self._network = Network()

    def run(self) -> None:
        """Serve until the stream ends and nothing is left."""
        with self._ports, self._tasks, self._poller:
            self._signals = ExitSignals(self._poller)
            self._send(messages.Hello(socket.gethostname(), os.getpid(), len(os.sched_getaffinity(0))))
            while not (self._leaving and self._teardown is None):
                try:
                    self._turn()
                except Exception:
                    if self._leaving:
                        raise
                    self._abort()
            self._forks.close()
            self._stream.close()

    # -- the loop

    def _turn(self) -> None:
        timeout = self._next_wake() - time.monotonic()
        for fd, _ in self._poller.poll(max(0.0, timeout), 1024):
            self._report_exits()
            self._serve(fd)
        self._report_exits()
        self._reap_orphans()
        now = time.monotonic()
        if self._teardown is not None:
            self._advance_teardown(now)
        else:
            self._watch_tasks(now)
        self._forward_progress(now)
        if not self._stream.advance(now):
            self._leave_silently()

    def _report_exits(self) -> None:
        """Report exited tasks immediately. Called between other work, so that slow work never delays an exit."""
        for task in self._tasks.exited():
            self._report_exit(task)

    def _next_wake(self) -> float:
        wakes = [self._stream.due] if self._stream.is_full else [self._progress.due, self._stream.due]
        if self._teardown is not None:
            wakes.append(self._teardown.due)
        else:
            wakes.append(self._disks.due)
            if self._tasks:
                wakes.append(self._sampler.due)
            if any(not task.is_ready for task in self._tasks):
                wakes.append(self._readiness.due)
        return min(min(wakes), time.monotonic() + 3600)

    def _serve(self, fd: int) -> None:
        if self._stream.serves(fd):
            self._read_stream(fd)
        elif self._signals.serves(fd):
            must_leave, is_notice = self._signals.read()
            if must_leave or (is_notice and not self._tasks):
                self._leave_silently()
            elif is_notice:
                self._send(messages.Notice())
        else:
            for owner in (self._forks, self._checks, self._stacks, self._progress):
                if owner.serves(fd):
                    owner.serve(fd)
                    return

    def _abort(self) -> None:
        """End everything after an error of the agent, or a message that it cannot parse."""
        traceback.print_exc()
        self._stream.ignore_input()
        self._leave_silently()

    def _leave_silently(self) -> None:
        """End all tasks, then exit. Exits from here on are not failures, and are not reported."""
        self._stream.drop_output()
        self._leave()

    def _leave(self) -> None:
        """End all tasks, then exit."""
        self._leaving = True
        self._forks.kill_preloader()
        self._begin_teardown(self._failure_grace_s)

    # -- the stream

    def _read_stream(self, fd: int) -> None:
        orders, is_open = self._stream.read(fd)
        for order in orders:
            self._report_exits()  # hundreds of starts take a while
            self._handle(order)
        if not is_open:
            self._leave()

    def _handle(self, message: ToAgent) -> None:
        match message:
            case messages.Run():
                self._begin(message)
            case Question():
                self._checks.ask(message)
            case messages.Hold():
                self._hold(message)
            case messages.PreloadOrder():
                if self._network.refusal is None:
                    self._forks.preload(message, RunFile(message.log, self._run_directory))
            case messages.Plan():
                self._cluster = Cluster(message.cluster)
                self._progress.set_tasks(sum(map(len, message.cluster.values())))
            case messages.TaskOrder():
                self._start(message)
            case messages.Signal():
                if (task := self._tasks.by_name.get(message.task)) is not None:  # else it has exited
                    task.signal_group(message.number)
            case messages.TakeStacks():
                ending = self._teardown is not None
                self._stacks.ask(message.tasks, self._tasks.by_name, message.native, ending=ending)
            case messages.Stop():
                self._begin_teardown(message.grace_s)
            case messages.Credit() | messages.Ping():  # for the stream of another host
                return
            case _:
                assert_never(message)

    def _begin(self, run: messages.Run) -> None:
        """Serve this run from now on: the first one, or the next one after a run that is over."""
        self._failure_grace_s = run.failure_grace_s
        self._forks.begin_run()
        os.environ.clear()
        for name, value in run.environ.items():
            os.environb[name.encode("latin-1")] = value.encode("latin-1")
        self._run_directory = run.directory
        if run.log:
            log = open_log(RunFile(run.log, run.directory))
            os.dup2(log, _STDERR)
            os.close(log)
        self._network.enter(run.network)
        self._descriptors.close()
        self._descriptors = Descriptors(run.descriptors, self._stream.take_descriptors())
        self._send(messages.Begun(run.run_id))

    def _send(self, message: FromAgent) -> None:
        self._stream.send(message)

    # -- ports and tasks

    def _hold(self, order: messages.Hold) -> None:
        self._checks.close()
        if self._network.refusal is not None:
            self._send(messages.HoldFailed(self._network.refusal))
            return
        try:
            ports = self._ports.hold(order.count, order.mode)
        except (PortsExhausted, OSError) as error:
            self._send(messages.HoldFailed(str(error)))
        else:
            self._tasks.begin_attempt()
            self._send(messages.Held(order.number, tuple(ports)))

    def _start(self, order: messages.TaskOrder) -> None:
        if self._teardown is not None or self._network.refusal is not None:
            return  # a stop came first, or the private network was refused
        env: Mapping[str, str] = {}
        if order.role is not None and order.index is not None:
            env = self._cluster.env(order.role, order.index, order.env)
        bootstrap = allow_tracing(order.bootstrap)
        if bootstrap is not None:
            bootstrap = {**bootstrap, "run_directory": self._run_directory}
        descriptors = self._descriptors.of(order.task)
        task_start = TaskStart(order, env, self._run_directory, bootstrap, descriptors)
        if order.fork:
            self._forks.fork(task_start)
        else:
            self._spawn(task_start)

    def _spawn(self, task_start: TaskStart) -> None:
        try:
            task = start(task_start)
        except (StartFailed, OSError) as error:
            code = getattr(error, "exit_code", COMMAND_NOT_RUNNABLE)
            facts = ExitFacts(code, None, time.monotonic(), start_error=str(error))
            self._send(messages.Exited(task_start.order.task, facts))
            return
        self._add(task)

    def _add(self, task: TaskProcess) -> None:
        self._tasks.add(task)
        self._progress.add(task)
        self._readiness.hasten(task.started_mono)
        if task.order.memory_limit is not None:
            self._sampler.hasten(task.started_mono)
        self._send(messages.Started(task.name, task.pid, task.start_ticks, task.method))

    def _report_exit(self, task: TaskProcess) -> None:
        mono = time.monotonic()
        self._progress.read_last(task)
        self._forward_progress(mono, at_once=True)
        if self._teardown is not None and self._teardown.is_killing:
            # The group can be signalled safely only until its leader is reaped.
            task.signal_group(signal.SIGKILL)
        status = task.reap()
        if status is None:
            return
        exit_code, number = status
        failed = exit_code != 0 and self._teardown is None
        if failed:
            self._disks.request(mono, task.name, task.start.output_dirs)
        # During a teardown the states of the peers say nothing about the failure.
        peers = self._tasks.peer_states(task) if failed else {}
        self._forget(task)
        facts = ExitFacts(
            exit_code=exit_code,
            signal=number,
            mono=mono,
            asked=task.was_signalled,
            peers=peers,
            oom_kills=None if exit_code == 0 else task.oom_mark.kills_since(),
            peak_bytes=task.peak_bytes,
            over_limit=task.over_limit,
        )
        self._send(messages.Exited(task.name, facts))

    def _forget(self, task: TaskProcess) -> None:
        self._stacks.forget(task)
        self._progress.remove(task)
        self._tasks.remove(task)

    def _reap_orphans(self) -> None:
        """Reap descendants whose parents died, which are children of this process now."""
        reaped_elsewhere = {task.pid for task in self._tasks} | self._stacks.pids | self._checks.pids
        while True:
            try:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            # Leaders are reaped in the order in which their pidfds become ready, helpers when their answers were read.
            if info is None or info.si_pid in reaped_elsewhere:
                return
            if not self._forks.reap(info.si_pid):
                os.waitpid(info.si_pid, 0)

    # -- teardown

    def _begin_teardown(self, grace_s: float) -> None:
        self._checks.close()
        now = time.monotonic()
        self._forks.cancel()
        self._stacks.cancel()
        if self._teardown is None:
            self._teardown = Teardown(
                os.getpid(), now, grace_s, self._failure_grace_s, self._spared, self._refused
            )
            self._teardown.terminate(self._tasks)
        else:
            self._teardown.hasten(now + grace_s)
        self._teardown.due = now

    def _spared(self) -> set[int | None]:
        """The processes of the agent itself."""
        preloader = None if self._leaving else self._forks.pid
        return {self._sampler.child, preloader, *self._stacks.pids}

    def _advance_teardown(self, now: float) -> None:
        teardown = self._teardown
        if teardown is None or not teardown.advance(now, list(self._tasks)):
            return
        self._teardown = None
        for task in self._tasks:  # of other users: they run on
            self._forget(task)
        self._refused += teardown.refused
        self._report_full_disks(float("inf"))
        self._ports.close()
        self._send(messages.Empty(teardown.swept, tuple(map(describe, teardown.refused))))

    # -- watching

    def _watch_tasks(self, now: float) -> None:
        waiting = [task for task in self._tasks if not task.is_ready]
        for task in self._readiness.newly_ready(now, waiting):
            task.is_ready = True
            self._send(messages.Listening(task.name))
        self._report_exits()
        sample = self._sampler.take(now, [task for task in self._tasks if not task.order.is_helper])
        for name, usage in sample.items():
            self._tasks.by_name[name].check_memory(usage.memory_bytes)
        if sample and not self._stream.is_full:
            self._send(messages.Sampled(sample))
        self._report_full_disks(now)

    def _report_full_disks(self, now: float) -> None:
        for task, reason in self._disks.run_due(now):
            self._send(messages.DiskFull(task, reason))

    def _forward_progress(self, now: float, at_once: bool = False) -> None:
        if self._stream.is_full and not at_once:
            return
        for name, progress in self._progress.take(now, at_once).items():
            self._send(messages.ProgressMade(name, progress))


def serve(open_stream: Callable[[select.epoll], SupervisorStream]) -> NoReturn:
    """Be the agent of this stream, then exit."""
    become_subreaper()
    raise_file_limit()
    Agent(open_stream).run()
    # Skips the interpreter's cleanup: the end of the run waits for this process.
    os._exit(0)


if __name__ == "__main__":
    serve(partial(SupervisorStream, _STDIN, _STDOUT))
