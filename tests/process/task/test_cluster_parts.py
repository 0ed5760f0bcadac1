"""What the bootstrap does in a task of a cluster, part by part: the leader, steps, `--communication` and the exit."""

from __future__ import annotations

import enum
import json
import socket
import threading
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tasks import finished

from worker.bootstrap import cluster_facts, tensorflow_hooks
from worker.bootstrap.cluster_facts import StepCount, await_listener
from worker.bootstrap.keras_fix.workers import place
from worker.bootstrap.tensorflow_settings import set_communication


@pytest.mark.parametrize("longest_s", [0.0, 0.05, None])
def test_wait_lasts_until_the_leader_listens(
    monkeypatch: pytest.MonkeyPatch, longest_s: float | None
) -> None:
    """It ends without an error if no leader listens in time."""
    with socket.socket() as held:  # it refuses connections until its owner listens
        held.bind(("127.0.0.1", 0))
        if longest_s is None:
            # The first attempt is refused.
            monkeypatch.setattr(cluster_facts.time, "sleep", lambda seconds: held.listen())
        else:
            monkeypatch.setattr(cluster_facts, "_LONGEST_WAIT_S", longest_s)
        await_listener(f"127.0.0.1:{held.getsockname()[1]}")
        if longest_s is None:
            held.settimeout(0)
            held.accept()[0].close()
    await_listener("")


def test_only_workers_without_parameter_servers_train_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of tasks that do decides which Keras fixes apply."""
    workers = {"worker": ["a:1", "b:1"]}
    chief = workers | {"chief": ["c:1"]}
    found = []
    rows: list[tuple[dict[str, list[str]], str, int, tuple[int, bool]]] = [
        (workers, "worker", 0, (2, True)),
        (workers, "worker", 1, (2, False)),
        (chief, "worker", 0, (3, False)),
        (chief | {"ps": ["d:1"]}, "chief", 0, (1, True)),
        (chief | {"ps": ["d:1"]}, "worker", 0, (1, False)),
        (workers | {"evaluator": ["e:1"]}, "evaluator", 0, (1, False)),
    ]
    for cluster, kind, index, _ in rows:
        where = {"cluster": cluster, "task": {"type": kind, "index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(where))
        its = place()
        found.append(its and (its.workers, its.is_chief))
    assert found == [expected for *_, expected in rows]


# -- the steps of Keras's `fit`: reports are true, and few however quick the steps are


def counted() -> tuple[StepCount, list[dict[str, Any]]]:
    sent: list[dict[str, Any]] = []
    pipe: Any = SimpleNamespace(report=lambda fit: sent.append(fit))
    return StepCount(pipe), sent


def test_slow_steps_are_all_reported() -> None:
    count, sent = counted()
    for epoch in (2, 3):
        count.begin_epoch(epoch, 5)
        for batch in range(5):
            count.step(batch, 5, now=epoch * 10.0 + batch)
    assert [fit["done"] for fit in sent] == [*range(1, 11)]
    assert {(fit["start"], fit["skips"]) for fit in sent} == {(10, False)}


def test_quick_steps_send_two_reports_per_interval_and_say_that_more_follow() -> None:
    count, sent = counted()
    count.begin_epoch(0, 1000)
    for batch in range(1000):
        count.step(batch, 1000, now=batch / 1000)
    assert [(fit["done"], fit["skips"]) for fit in sent[:2]] == [(1, False), (2, True)]
    assert 50 <= len(sent) <= 110
    # A report that claims to be exact is followed by one for the next step.
    for report, following in pairwise(sent):
        assert report["skips"] or following["done"] == report["done"] + 1


def test_steps_of_epochs_of_unknown_length_and_of_several_in_one_execution() -> None:
    count, sent = counted()
    count.begin_epoch(2, None)
    for batch in range(3):
        count.step(batch, None, now=float(batch))
    count.begin_epoch(3, None)
    count.step(0, None, now=9.0)
    assert [(fit["done"], fit["start"]) for fit in sent] == [(1, None), (2, None), (3, None), (4, 6)]
    count, sent = counted()
    count.begin_epoch(0, 5)
    for batch in (1, 3, 5):
        count.step(batch, 5, now=float(batch))
    assert [fit["done"] for fit in sent] == [2, 4, 5]


# -- `--communication` is the default of MultiWorkerMirroredStrategy in a script that does not set it


class Implementation(enum.Enum):
    AUTO = "AUTO"
    RING = "RING"


@dataclass
class Options:
    implementation: Implementation


class Strategy:
    def __init__(self, cluster_resolver: object = None, communication_options: object = None) -> None:
        self.given = (cluster_resolver, communication_options)


def with_communication(monkeypatch: pytest.MonkeyPatch, **environ: str) -> bool:
    """Whether the strategy has another default now, in a module with the parts of TensorFlow's that are used."""
    original = Strategy.__init__
    monkeypatch.setattr(Strategy, "__init__", original)
    util = SimpleNamespace(CommunicationImplementation=Implementation, Options=Options)
    module: Any = SimpleNamespace(collective_util=util, CollectiveAllReduceStrategy=Strategy)
    set_communication(module, environ)
    return Strategy.__init__ is not original


def test_only_the_default_of_tensorflow_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    for same in ({}, {"ORCH_COMMUNICATION": ""}, {"ORCH_COMMUNICATION": "auto"}):
        assert not with_communication(monkeypatch, **same)
    with pytest.raises(ValueError, match="ORCH_COMMUNICATION: 'fast' is none of auto, ring"):
        with_communication(monkeypatch, ORCH_COMMUNICATION="fast")
    assert with_communication(monkeypatch, ORCH_COMMUNICATION="ring")
    assert Strategy("resolver").given == ("resolver", Options(Implementation.RING))
    own = Options(Implementation.AUTO)
    assert Strategy(communication_options=own).given[1] is own


WITH_TENSORFLOW = """
import tensorflow as tf
kinds = tf.distribute.experimental
own = kinds.CommunicationOptions(implementation=kinds.CommunicationImplementation.AUTO)
for options in (None, own):
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    print("implementation", strategy.extended._communication_options.implementation.value)
"""


@pytest.mark.slow
def test_a_tensorflow_script_uses_it(tmp_path: Path) -> None:
    task = finished(tmp_path, ["-c", WITH_TENSORFLOW], env={"ORCH_COMMUNICATION": "ring", "TF_CONFIG": None})
    assert task.process.returncode == 0, task.output
    lines = [line.split()[1] for line in task.output.splitlines() if line.startswith("implementation")]
    assert lines == ["RING", "AUTO"]


# -- SIGTERM's handler during blocking calls, and the coordinator's exit

BLOCKING = """
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
thread = threading.Thread(target=lambda: print("in a thread", blocking.abort_at_stop(print)))
thread.start()
thread.join()
"""


def test_a_replaced_handler_is_restored_while_the_call_blocks(tmp_path: Path) -> None:
    """Collectives are not aborted for a strategy of another thread."""
    lines = finished(tmp_path, ["-c", BLOCKING]).output.splitlines()
    assert lines == ["unchanged False", "result True True", "unchanged False", "in a thread None"]


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


def test_recovery_thread_has_ended_at_exit_or_does_not_block_it(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = Handler()
    tensorflow_hooks._end_recoveries()
    assert not handler.thread.is_alive()
    monkeypatch.setattr(tensorflow_hooks, "_RECOVERY_S", 0.01)
    handler = Handler()
    with handler._cluster_update_lock:
        tensorflow_hooks._end_recoveries()
        handler.stop()  # the coordinator's destructor; waits forever unless it was replaced
    handler.due.set()
    handler.thread.join()


CONNECTED = """
import sys, types
from _orch_bootstrap import tensorflow_hooks
from _orch_bootstrap.messages import ProgressPipe

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


def test_exit_of_a_coordinator_asks_no_worker_to_remove_functions(tmp_path: Path) -> None:
    assert finished(tmp_path, ["-c", CONNECTED]).output.startswith("asked all")
    assert finished(tmp_path, ["-c", CONNECTED, "connect"]).output == "connected\n"
