"""Signals to `orch up` before its run is followed."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Self

from orchestrator.links.signal_inbox import NOTICE_SIGNAL


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP asked this process to stop, as Ctrl-C does."""


class EarlySignals:
    """Inside its `with`, SIGTERM and SIGHUP raise Terminated, and a notice is kept in `is_noticed`.

    Signals that this process has inherited as ignored stay ignored.
    """

    def __init__(self) -> None:
        self.is_noticed = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGHUP, NOTICE_SIGNAL):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._arrive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._arrive:
                signal.signal(number, handler)  # type: ignore[arg-type]

    def _arrive(self, number: int, frame: FrameType | None) -> None:
        if number != NOTICE_SIGNAL:
            raise Terminated
        self.is_noticed = True
