"""SIGTERM and SIGINT end a process even while native code blocks and holds the interpreter lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import LONGEST_RUN_S, ROOT

# PyDLL, unlike CDLL, holds the lock during the call, as TensorFlow does while it waits for its peers.
BLOCKED = """
import ctypes, os, signal, sys
from worker.training.process.ending import exit_on_signals
if sys.argv[1] == "guarded":
    exit_on_signals()
else:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(99))
libc = ctypes.CDLL(None)
libc.signal(int(sys.argv[2]), ctypes.cast(libc.getpid, ctypes.c_void_p))
print("blocking", flush=True)
while True:
    ctypes.PyDLL(None).sleep(1000)
"""


def start_blocked(mode: str, replaced: signal.Signals) -> subprocess.Popen[str]:
    """Start a process that blocks in native code and ignores the signal `replaced`."""
    return subprocess.Popen(
        [sys.executable, "-c", BLOCKED, mode, str(int(replaced))],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_blocked_process_exits_with_the_code_of_the_signal(number: signal.Signals, code: int) -> None:
    with start_blocked("guarded", signal.SIGTERM) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "blocking\n"
            process.send_signal(number)
            assert process.wait(LONGEST_RUN_S) == code
        finally:
            process.kill()


def wait_until_taken(pid: int, number: signal.Signals) -> None:
    """Wait until the signal is not pending any more: it was handled, or it ended the process."""
    while True:
        status = Path(f"/proc/{pid}/status").read_text()
        pending = int(status.split("ShdPnd:")[1].split()[0], 16)
        if not pending & 1 << (number - 1):
            return


def test_blocked_process_does_not_exit_without_exit_on_signals() -> None:
    with start_blocked("unguarded", signal.SIGTERM) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "blocking\n"
            process.send_signal(signal.SIGTERM)
            wait_until_taken(process.pid, signal.SIGTERM)
            process.send_signal(signal.SIGQUIT)
            # The exit code shows that SIGTERM had not ended it.
            assert process.wait(LONGEST_RUN_S) == -signal.SIGQUIT
        finally:
            process.kill()


HANDED_OVER = """
import os, signal, sys, threading
from worker.training.process.ending import exit_on_signal_again, exit_on_signals, pass_signal_to_python
exit_on_signals()
handled = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: handled.set())
pass_signal_to_python(signal.SIGTERM)
if sys.argv[1] == "signalled":
    os.kill(os.getpid(), signal.SIGTERM)
    # The handler runs only between Python instructions, so do not block.
    while not handled.wait(0.01):
        pass
    print("handled", flush=True)
exit_on_signal_again(signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTERM)
threading.Event().wait(60)
"""


@pytest.mark.parametrize("before", ["signalled", "not-signalled"])
def test_signal_passed_to_python_calls_its_handler_until_that_is_undone(before: str) -> None:
    process = subprocess.run(
        [sys.executable, "-c", HANDED_OVER, before],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LONGEST_RUN_S,
        check=False,
    )
    assert process.returncode == 143, process.stderr
    assert process.stdout == ("handled\n" if before == "signalled" else "")
