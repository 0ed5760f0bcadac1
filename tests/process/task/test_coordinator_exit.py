"""A coordinator stops its recovery thread at its exit, and asks no worker to remove functions."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from worker.bootstrap import tensorflow_hooks

_CONNECTED = """
import sys, types
from worker.bootstrap import tensorflow_hooks
from worker.bootstrap.messages import ProgressPipe

class Context:
    def remove_function(self, name):
        print("asked all workers to remove", name)

class Function:
    def __del__(self):
        context.remove_function(self)

context, kept = Context(), Function()
sys.modules["tensorflow.python.eager.context"] = types.SimpleNamespace(Context=Context)
if sys.argv[1:]:
    tensorflow_hooks._connecting_interruptibly(lambda: print("connected"), ProgressPipe())()
"""


class Handler:
    """Has the parts of TensorFlow's WorkerPreemptionHandler that its stop() and its thread use."""

    def __init__(self) -> None:
        self._should_preemption_thread_run = True
        self._cluster_update_lock = threading.Lock()
        self.due = threading.Event()
        self.thread = threading.Thread(target=self.recover, name="WorkerPreemptionHandler", daemon=True)
        self.thread.start()

    def recover(self) -> None:
        while self._should_preemption_thread_run:
            self.due.wait()

    def stop(self) -> None:
        with self._cluster_update_lock:
            self.due.set()


def test_recovery_thread_has_ended_at_exit() -> None:
    handler = Handler()
    tensorflow_hooks._end_recoveries()
    assert not handler.thread.is_alive()


def test_recovery_that_does_not_end_does_not_block_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorflow_hooks, "_RECOVERY_S", 0.01)
    handler = Handler()
    with handler._cluster_update_lock:
        tensorflow_hooks._end_recoveries()
        handler.stop()  # the coordinator's destructor; waits forever unless it was replaced
    handler.due.set()
    handler.thread.join()


@pytest.mark.parametrize(("words", "said"), [((), "asked all"), (("connect",), "connected\n")])
def test_exit_asks_no_worker_to_remove_functions(words: tuple[str, ...], said: str) -> None:
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", _CONNECTED, *words], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(said) and ("asked" in done.stdout) is (not words), done.stderr
