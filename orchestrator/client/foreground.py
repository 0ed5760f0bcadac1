"""`orch up` in the foreground: follows the run to its end, and turns the user's signals into stop orders."""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Protocol

from orchestrator.client.follow import Follower
from orchestrator.client.live_keys import RETURN_KEY, LiveKeys
from orchestrator.client.orders import ask_run
from orchestrator.client.task_terminal import LAST_DRAIN_S, TaskTerminal
from orchestrator.client.view.output import OutputClosed
from orchestrator.client.view.terminal import View
from orchestrator.core.errors import EngineError
from orchestrator.core.state.events import STOP_SIGNALS, NoticeSource, StopReason
from orchestrator.links.orders import DetachOrder, NoticeOrder, StopOrder
from orchestrator.links.signal_inbox import NOTICE_SIGNAL, SignalInbox
from orchestrator.store.runs.liveness import is_of_this_host, is_stopped, is_supervisor_alive
from orchestrator.store.runs.reader import RunView

# Killing takes milliseconds: after this many seconds a further signal checks that the supervisor still answers.
PATIENCE_S = 2.0
# Seconds to show the remaining lines after the second signal.
_REST_AFTER_KILL_S = 1.0
_FROM_USER = frozenset({StopReason.INTERRUPT, StopReason.TERMINATE})


class Supervising(Protocol):
    """The connection to the supervisor of the run: a SupervisorLink, or a SubmittedLink."""

    def fileno(self) -> int: ...
    def send(self, order: StopOrder | NoticeOrder | DetachOrder, /) -> None: ...
    def detach(self) -> None: ...
    def has_left(self) -> bool: ...


def follow_to_end(
    link: Supervising,
    run: RunView,
    view: View,
    tasks: Collection[str] | None,
    inbox: SignalInbox,
    keys: LiveKeys,
    verbose: bool = False,
    sources: SourceChanges | None = None,
    terminal: TaskTerminal | None = None,
    *,
    quiet: bool = False,
) -> bool:
    """Show the run until its supervisor has exited and all lines are shown, or a key detaches it: then return True.

    `inbox` collects STOP_SIGNALS and NOTICE_SIGNAL. The first stop is orderly, the second kills. Once the run has
    ended, a signal skips the remaining lines. A change of `sources` stops the run. `terminal` is that of a task. Raises
    EngineError if the supervisor does not answer.
    """
    follower = Follower(run, view, tasks, verbose=verbose, owner_is_quiet=quiet)
    orders = _Orders(link, run, follower)
    try:
        with run.keep_open():
            desk = _Desk(run, follower, view, keys, terminal)
            return _follow(link, follower, view, inbox, desk, orders, sources)
    except _NoAnswer as error:
        raise EngineError(f"{run.record.id}: {_no_answer(run)}") from error
    finally:
        follower.close()


def _no_answer(run: RunView) -> str:
    job, pid = run.record.job, run.record.supervisor_pid
    if job is not None and not is_supervisor_alive(run.record, run.paths):
        return (
            f"the supervisor does not answer and was left running; `scancel {job}` ends its Slurm job {job}"
        )
    return (
        f"the supervisor (pid {pid}) does not answer and was left running; `kill -CONT {pid}` resumes it,"
        f" `kill -KILL {pid}` ends it with all its tasks"
    )


class SourceChanges(Protocol):
    """The source files of the run. `fileno()` is readable once one of them has changed."""

    def fileno(self) -> int: ...
    def has_changed(self) -> bool: ...


class _NoAnswer(Exception):
    """The supervisor does not answer: it was stopped by SIGSTOP, for instance."""


class _Orders:
    """Sends stop orders to the supervisor and remembers which were sent."""

    def __init__(self, link: Supervising, run: RunView, follower: Follower) -> None:
        self._link = link
        self._run = run
        self._follower = follower
        self._sent = 0
        self._sent_by_user = 0
        self._forced_mono = 0.0

    @property
    def was_sent(self) -> bool:
        return self._sent > 0

    def stop(self, reason: StopReason) -> None:
        """Send a stop order; only a second Ctrl-C or SIGTERM forces it. Raises _NoAnswer.

        Other reasons often follow from an earlier one: a terminal that closes sends SIGHUP and then rejects output,
        and in a pipeline Ctrl-C also ends the reader.
        """
        is_from_user = reason in _FROM_USER
        if self._sent and not is_from_user:
            return
        now = time.monotonic()
        force = is_from_user and self._sent_by_user > 0
        is_late = self._sent_by_user > 1 and now > self._forced_mono + PATIENCE_S
        is_suspended = is_of_this_host(self._run.record) and is_stopped(self._run.record.supervisor_pid)
        if (force and is_suspended) or (is_late and not self._has_answer(reason)):
            raise _NoAnswer
        self._link.send(StopOrder(reason=reason, force=force))
        if force and self._sent_by_user == 1:
            self._forced_mono = now
        self._sent += 1
        self._sent_by_user += is_from_user
        self._follower.hint = "killing" if force else "stopping; Ctrl-C again to kill"

    def notice(self) -> None:
        """Pass on that the machines of the run will go."""
        self._link.send(NoticeOrder(source=NoticeSource.SIGNAL))

    def _has_answer(self, reason: StopReason) -> bool:
        """Ask over the control socket: the supervisor may be busy for seconds with an agent that does not answer."""
        return ask_run(self._run, StopOrder(reason=reason, force=True)) is not None


class _Desk:
    """The user's screen and keyboard: the view of the run with its keys or, in turn, the terminal of a task."""

    def __init__(
        self, run: RunView, follower: Follower, view: View, keys: LiveKeys, terminal: TaskTerminal | None
    ) -> None:
        self.keys = keys
        self._run = run
        self._follower = follower
        self._view = view
        self._terminal = terminal

    @property
    def inputs(self) -> tuple[int, ...]:
        """The descriptors that step() or the keys read."""
        terminal = self._terminal
        own = () if terminal is None else terminal.inputs
        return own if terminal is not None and terminal.is_connected else (*own, *self.keys.descriptors)

    def leaves(self) -> bool:
        """Act on pressed keys. Return whether one of them leaves the run."""
        is_connected = self._terminal is not None and self._terminal.is_connected
        return not is_connected and self.keys.handle()

    def step(self) -> float:
        """Show what is new. Return the seconds until there may be more."""
        if self._terminal is None:
            return self._follower.step()
        was_connected, tasks = self._terminal.is_connected, self._follower.state.tasks
        is_there = self._terminal.serve(self._run, self._follower)
        if was_connected and not is_there:
            self.leave_terminal()
        elif not was_connected and (self._terminal.is_due(tasks) or self._returns()):
            self._view.say(self._terminal.greeting)
            self._view.pause()
            self._view.drain(LAST_DRAIN_S)
            self._terminal.connect(tasks)
        return self._follower.watch() if self._terminal.is_connected else self._follower.step()

    def _returns(self) -> bool:
        if self._terminal is None or not self.keys.take_return():
            return False
        task = self._follower.state.tasks.get(self._terminal.task)
        is_live = task is not None and task.is_live
        if not is_live:
            self._view.say(f"orch: {self._terminal.task or 'no task that has failed'} is not running")
        return is_live

    def leave_terminal(self) -> None:
        """Return from the terminal of the task to the view."""
        if self._terminal is not None and self._terminal.is_connected:
            self._terminal.leave()
            hint = f"; {RETURN_KEY} returns to it, Ctrl-C stops the run"
            self._view.say(f"orch: left {self._terminal.task}{'' if self._terminal.has_ended else hint}")

    def close(self) -> None:
        """Take the last output of the task, which has ended, and return to the view."""
        if self._terminal is None:
            return
        with suppress(OSError):  # of a closed terminal
            self._terminal.read_rest(self._run, self._follower)
            self._terminal.leave()


def _follow(
    link: Supervising,
    follower: Follower,
    view: View,
    inbox: SignalInbox,
    desk: _Desk,
    orders: _Orders,
    sources: SourceChanges | None,
) -> bool:
    """Return whether a key has detached the run."""
    output_open = True
    while not link.has_left():
        if not orders.was_sent:
            follower.hint = desk.keys.hint
        pause = 1.0
        if output_open:
            try:
                pause = desk.step()
            except OSError as error:
                output_open = False
                orders.stop(_reason_of(error))
        watched = () if sources is None or sources.has_changed() else (sources.fileno(),)
        inbox.wait(pause, link.fileno(), *desk.inputs, *watched)
        for number in inbox.take():
            if number == NOTICE_SIGNAL:
                orders.notice()
                continue
            orders.stop(STOP_SIGNALS[number])
            view.hurry()
        if sources is not None and sources.has_changed():
            orders.stop(StopReason.SOURCE_CHANGED)
        if desk.leaves():
            if not orders.was_sent:
                link.detach()
                _leave(view, inbox)
                return True
            view.say("orch: the run is being stopped")
    desk.close()
    if output_open:
        _show_end(follower, view, inbox)
    return False


def _leave(view: View, inbox: SignalInbox) -> None:
    """Remove the footer. A terminal that is blocked delays this until a signal arrives."""
    try:
        view.finish()
        while not view.drain(0.1) and not inbox.take():
            pass
    except OSError as error:
        _reason_of(error)


def _show_end(follower: Follower, view: View, inbox: SignalInbox) -> None:
    """Show the remaining lines of the ended run."""
    follower.refresh()
    # A user who has already signalled twice does not wait for a reader that is blocked.
    until = time.monotonic() + (_REST_AFTER_KILL_S if inbox.count > 1 else math.inf)
    has_left = False
    try:
        while not has_left and follower.show_rest():
            has_left = bool(inbox.take()) or time.monotonic() > until
        view.finish()
        while not view.drain(0.1) and not has_left:
            has_left = bool(inbox.take()) or time.monotonic() > until
    except OSError as error:
        _reason_of(error)


def _reason_of(error: OSError) -> StopReason:
    """Why the output is closed. Other errors, such as a full disk, are raised again."""
    if isinstance(error, OutputClosed):
        return StopReason.OUTPUT_CLOSED
    # A closed terminal fails with EIO, sometimes before its SIGHUP arrives.
    if error.errno == errno.EIO:
        return StopReason.HANGUP
    raise error
