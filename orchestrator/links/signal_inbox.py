"""Signals as a file descriptor: the handlers only enqueue, and the loop that waits for them decides."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Self

# Tells a run that its machines will go. It stops nothing by itself.
NOTICE_SIGNAL = signal.SIGUSR2
# Seconds. Enough to print a report on any stream that takes it.
_LAST_MOMENT_S = 3.0


class SignalInbox:
    """Inside its `with`, the given signals wake wait() and are returned by take(), in order.

    `count` is the number of all that have arrived, except notices. A signal that this process inherited as ignored
    stays ignored (nohup, a background job). Main thread only.
    """

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        self._numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        self._before: dict[signal.Signals, object] = {}
        self._arrived: list[signal.Signals] = []
        self.count = 0
        self._fd = self._wake_fd = -1
        self._interrupts = False

    def __enter__(self) -> Self:
        self._fd, self._wake_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for number in self._numbers:
            self._before[number] = signal.signal(number, self._arrive)
        signal.set_wakeup_fd(self._wake_fd, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        os.close(self._fd)
        os.close(self._wake_fd)

    def _arrive(self, number: int, frame: FrameType | None) -> None:
        self._arrived.append(signal.Signals(number))
        self.count += number != NOTICE_SIGNAL
        if self._interrupts:
            raise KeyboardInterrupt

    @contextmanager
    def settled(self, exit_code: int) -> Iterator[None]:
        """For the end of a process whose exit code is known: signals no longer change it.

        Inside the block, the second signal of all that arrived exits at once with `exit_code`. If it has come before,
        the block is given a moment: it may wait for a reader of its output. After the block all are ignored, also after
        the inbox's own `with`: a process that continues restores its handlers itself.
        """

        def leave(number: int, frame: FrameType | None) -> None:
            self._arrive(number, frame)
            if self.count > 1:
                os._exit(exit_code)

        is_limited = self.count > 1
        for number in (*self._numbers, *[signal.SIGALRM] * is_limited):
            self._before.setdefault(number, signal.signal(number, leave))
        if is_limited:
            signal.setitimer(signal.ITIMER_REAL, _LAST_MOMENT_S)
        try:
            yield
        finally:
            if is_limited:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
        # SIG_IGN, because the interpreter removes Python's handlers before it exits.
        self._before |= dict.fromkeys(self._numbers, signal.SIG_IGN)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Let signals interrupt the block, for work that cannot check for them: one that arrives in it, or that was not
        taken before, raises KeyboardInterrupt."""
        self._interrupts = True
        try:
            if self._arrived:
                raise KeyboardInterrupt
            yield
        finally:
            self._interrupts = False

    def wait(self, timeout_s: float, *others: int) -> None:
        """Wait until a signal arrives, one of the `others` (descriptors) is readable, or the time is over."""
        poller = select.poll()  # select() is limited to descriptors below 1,024
        for fd in (self._fd, *others):
            poller.register(fd, select.POLLIN)
        poller.poll(timeout_s * 1000)
        self.clear()

    def fileno(self) -> int:
        """Readable after a signal, until clear()."""
        return self._fd

    def clear(self) -> None:
        """Make the descriptor unreadable again; take() still returns the signals."""
        with suppress(BlockingIOError):
            os.read(self._fd, 4096)

    def take(self) -> list[signal.Signals]:
        arrived, self._arrived = self._arrived, []
        return arrived
