"""SIGTERM's handler during blocking calls: one that a library sets is replaced, and that is reported."""

from __future__ import annotations

from pathlib import Path

from tasks import finished

PROGRAM = """
import ctypes, os, signal, sys, threading, time
from _orch_bootstrap import blocking

libc = ctypes.CDLL(None)
handled, restored = threading.Event(), threading.Event()
signal.signal(signal.SIGTERM, lambda *_: handled.set())
handler = blocking.SavedHandler()
print("unchanged", handler.restore())

def call():
    libc.signal(15, 1)  # ignored, set without Python
    restored.wait(60)
    os.kill(os.getpid(), signal.SIGTERM)
    handled.wait(60)
    return "result"

print(blocking.call_interruptibly(call, on_restore=restored.set), restored.is_set(), handled.is_set())
print("unchanged", handler.restore())
"""


def test_a_replaced_handler_is_restored_while_the_call_blocks(tmp_path: Path) -> None:
    task = finished(tmp_path, ["-c", PROGRAM])
    assert task.output.splitlines() == ["unchanged False", "result True True", "unchanged False"]


IN_A_THREAD = """
import threading
from _orch_bootstrap import blocking
thread = threading.Thread(target=lambda: print(blocking.abort_at_stop(print)))
thread.start()
thread.join()
"""


def test_collectives_are_not_aborted_for_a_strategy_of_another_thread(tmp_path: Path) -> None:
    task = finished(tmp_path, ["-c", IN_A_THREAD])
    assert task.output.splitlines() == ["None"]
