"""`orch up` in the foreground: follows its run to the end, and turns the user's signals into stop orders."""

from __future__ import annotations

import errno
import signal
import time
from collections.abc import Collection

from orchestrator.client_link import Supervised
from orchestrator.control import StopOrder
from orchestrator.errors import EngineError
from orchestrator.events import StopReason
from orchestrator.follow import Follower
from orchestrator.runs.reader import RunView
from orchestrator.signal_inbox import SignalInbox
from orchestrator.view.choice import View
from orchestrator.view.output import OutputClosed

# Killing takes milliseconds; whoever is asked again this much later has not heard.
PATIENCE_S = 2.0
STOP_SIGNALS = {
    signal.SIGINT: StopReason.INTERRUPT,
    signal.SIGTERM: StopReason.TERMINATE,
    signal.SIGHUP: StopReason.HANGUP,
}


def follow_to_end(
    link: Supervised, run: RunView, view: View, tasks: Collection[str] | None, inbox: SignalInbox
) -> None:
    """Show the run until its supervisor has left and all its lines are shown. `inbox` collects STOP_SIGNALS.

    First signal: an orderly stop; a second: kill at once; one more while only lines are left to show: leave them.
    """
    follower = Follower(run, view, tasks)
    orders = _Orders(link, follower)
    try:
        _follow(link, follower, view, inbox, orders)
    except _Unheard as error:
        pid = run.record.supervisor_pid
        raise EngineError(
            f"{run.record.id}: its supervisor, pid {pid}, does not answer and is left alone; `kill -CONT {pid}` lets"
            f" it go on, `kill -KILL {pid}` ends it with all its tasks"
        ) from error
    finally:
        follower.close()


class _Unheard(Exception):
    """The supervisor takes no orders, stopped by SIGSTOP for instance."""


class _Orders:
    """What has been asked of the supervisor so far."""

    def __init__(self, link: Supervised, follower: Follower) -> None:
        self.given = 0
        self._last = 0.0
        self._link = link
        self._follower = follower

    def stop(self, reason: StopReason) -> None:
        """Pass an order on; _Unheard if the last one, to kill, had no effect for seconds."""
        now = time.monotonic()
        if self.given > 1 and now > self._last + PATIENCE_S:
            raise _Unheard
        self._last = now if self.given < 2 else self._last
        self._link.stop(StopOrder(reason=reason, force=self.given > 0))
        self.given += 1
        self._follower.hint = "stopping; Ctrl-C again to kill" if self.given == 1 else "killing"


def _follow(link: Supervised, follower: Follower, view: View, inbox: SignalInbox, orders: _Orders) -> None:
    output_open = True
    while not link.has_left():
        pause = 1.0
        if output_open:
            try:
                pause = follower.step()
            except OSError as error:
                output_open = False
                orders.stop(_reason_of(error))
        inbox.wait(pause, link.fileno())
        for number in inbox.take():
            orders.stop(STOP_SIGNALS[number])
            view.hurry()
    if not output_open:
        return
    follower.refresh()
    try:
        while follower.show_rest() and not inbox.take():
            pass
        view.finish()
        while not view.drain(0.1) and not inbox.take():
            pass
    except OSError as error:
        _reason_of(error)


def _reason_of(error: OSError) -> StopReason:
    """Why the output takes no more; a disk that is full, for instance, is an error and raised again."""
    if isinstance(error, OutputClosed):
        return StopReason.OUTPUT_CLOSED
    # What a closed terminal answers, sometimes before its SIGHUP has come.
    if error.errno == errno.EIO:
        return StopReason.HANGUP
    raise error
