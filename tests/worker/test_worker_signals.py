"""SIGTERM and SIGINT end a process even while native code blocks with the interpreter lock held."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import LONGEST_RUN_S, ROOT

# PyDLL, unlike CDLL, keeps the lock during the call: as TensorFlow does while it waits for its peers.
BLOCKED = """
import ctypes, os, signal, sys
from worker.training.signals import end_on_signals
if sys.argv[1] == "guarded":
    end_on_signals()
else:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(99))
libc = ctypes.CDLL(None)
libc.signal(int(sys.argv[2]), ctypes.cast(libc.getpid, ctypes.c_void_p))
print("blocking", flush=True)
while True:
    ctypes.PyDLL(None).sleep(1000)
"""


def blocked(mode: str, taken_over: signal.Signals) -> subprocess.Popen[str]:
    """A process stuck in native code, which has put a handler that does nothing in `taken_over`'s place."""
    return subprocess.Popen(
        [sys.executable, "-c", BLOCKED, mode, str(int(taken_over))],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_blocked_process_ends_with_the_signals_code(number: signal.Signals, code: int) -> None:
    with blocked("guarded", signal.SIGTERM) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "blocking\n"
            process.send_signal(number)
            assert process.wait(LONGEST_RUN_S) == code
        finally:
            process.kill()


def wait_until_taken(pid: int, number: signal.Signals) -> None:
    """Until the process has no such signal pending: it has been handled, or has ended the process."""
    while True:
        status = Path(f"/proc/{pid}/status").read_text()
        pending = int(status.split("ShdPnd:")[1].split()[0], 16)
        if not pending & 1 << (number - 1):
            return


def test_without_the_guard_the_same_process_does_not_end() -> None:
    with blocked("unguarded", signal.SIGTERM) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "blocking\n"
            process.send_signal(signal.SIGTERM)
            wait_until_taken(process.pid, signal.SIGTERM)
            process.send_signal(signal.SIGQUIT)
            # Had SIGTERM ended it, this would not be SIGQUIT.
            assert process.wait(LONGEST_RUN_S) == -signal.SIGQUIT
        finally:
            process.kill()
