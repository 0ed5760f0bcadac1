"""The signals of a terminal, heeded again by what a shell has started in the background."""

from __future__ import annotations

import signal


def heed_signals() -> None:
    """A shell's background job, and nohup, have them ignored, and so would all that this process starts."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)
