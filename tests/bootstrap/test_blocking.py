"""A handler that a library puts in SIGTERM's place while a call blocks is taken away again, and that is told."""

from __future__ import annotations

from pathlib import Path

from tasks import finished

PROGRAM = """
import ctypes, os, signal, sys, threading, time
from _orch_bootstrap import blocking

libc = ctypes.CDLL(None)
heard, told = threading.Event(), threading.Event()
signal.signal(signal.SIGTERM, lambda *_: heard.set())
handler = blocking.KeptHandler()
print("unchanged", handler.put_back())

def call():
    libc.signal(15, 1)  # ignored, by somebody who does not ask Python
    told.wait(60)
    os.kill(os.getpid(), signal.SIGTERM)
    heard.wait(60)
    return "result"

print(blocking.interruptibly(call, put_back=told.set), told.is_set(), heard.is_set())
print("unchanged", handler.put_back())
"""


def test_a_replaced_handler_is_put_back_while_the_call_blocks(tmp_path: Path) -> None:
    task = finished(tmp_path, ["-c", PROGRAM])
    assert task.output.splitlines() == ["unchanged False", "result True True", "unchanged False"]


IN_A_THREAD = """
import threading
from _orch_bootstrap import collectives
thread = threading.Thread(target=lambda: print(collectives.abort_at_stop(print)))
thread.start()
thread.join()
"""


def test_a_strategy_made_in_another_thread_is_not_aborted(tmp_path: Path) -> None:
    task = finished(tmp_path, ["-c", IN_A_THREAD])
    assert task.output.splitlines() == ["None"]
