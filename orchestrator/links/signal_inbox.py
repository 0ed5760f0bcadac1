"""Signals as something to read: the handlers only enqueue, the loop that waits for them decides."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self


class SignalInbox:
    """Within its `with`, the given signals wake wait() and are handed out by take(), in order.

    A signal that came in ignored stays so (nohup, a shell's background job). Main thread only.
    """

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        self._numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        self._before: dict[signal.Signals, object] = {}
        self._arrived: list[signal.Signals] = []
        self._fd = self._wake_fd = -1
        self._stays_deaf = False

    def __enter__(self) -> Self:
        self._fd, self._wake_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for number in self._numbers:
            self._before[number] = signal.signal(number, self._arrive)
        signal.set_wakeup_fd(self._wake_fd, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            if not self._stays_deaf:
                signal.signal(number, handler)  # type: ignore[arg-type]
        os.close(self._fd)
        os.close(self._wake_fd)

    def _arrive(self, number: int, frame: FrameType | None) -> None:
        self._arrived.append(signal.Signals(number))

    @contextmanager
    def settled(self, exit_code: int) -> Iterator[None]:
        """What is done within decides nothing any more: a signal is passed over, and one more ends this process at once
        with that code. From its end on none changes anything: for a process that then leaves."""

        def pass_over(number: int, frame: FrameType | None) -> None:
            self._arrive(number, frame)
            if len(self._arrived) > 1:
                os._exit(exit_code)

        self._arrived.clear()
        for number in self._numbers:
            signal.signal(number, pass_over)
        yield
        # No handler: the interpreter takes those away before it has taken itself down.
        self._stays_deaf = True
        for number in self._numbers:
            signal.signal(number, signal.SIG_IGN)

    def wait(self, timeout_s: float, *others: int) -> None:
        """Until a signal comes, one of the `others` (descriptors) is readable, or the time is over."""
        poller = select.poll()  # select() ends at descriptor 1,023
        for fd in (self._fd, *others):
            poller.register(fd, select.POLLIN)
        poller.poll(timeout_s * 1000)
        self.clear()

    def fileno(self) -> int:
        """Readable when a signal has come, until clear()."""
        return self._fd

    def clear(self) -> None:
        """Wait anew; take() still has what has come."""
        try:
            os.read(self._fd, 4096)
        except BlockingIOError:
            return

    def take(self) -> list[signal.Signals]:
        arrived, self._arrived = self._arrived, []
        return arrived
