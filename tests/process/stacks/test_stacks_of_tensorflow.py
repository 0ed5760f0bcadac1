"""`orch stacks` of a real cluster: one worker in a collective, one stopped, one hanging in native code."""

from __future__ import annotations

import signal

import pytest
from agent_driving import state_letter
from orch_command import Orch
from waiting import until

from orchestrator.core.diagnosis.hangs import describe_place, find_blocking_task
from orchestrator.core.state.result import TaskStack
from worker.agent.stack_sources import find_py_spy

TRAIN = """
import ctypes, os
import numpy as np
import tensorflow as tf

def hang_in_c():
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    print("hangs", flush=True)
    libc.pthread_mutex_lock(mutex)

class Hang(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3:
            print("trains", flush=True)
            if os.environ["ORCH_TASK"] == "worker:2":
                hang_in_c()

def main():
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    data = tf.data.Dataset.from_tensors((np.zeros((4, 8)), np.zeros((4, 1)))).repeat()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(data, epochs=1, steps_per_epoch=10_000_000, verbose=0, callbacks=[Hang()])

main()
"""


def line_of(text: str) -> int:
    """Where `text` stands last in the script."""
    return max(at for at, line in enumerate(TRAIN.splitlines(), 1) if text in line)


FIT, LOCK = line_of("model.fit"), line_of("pthread_mutex_lock")


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed")
def test_three_workers_stuck_in_three_ways(orch: Orch) -> None:
    orch("up", "-dq", "-n", "3", "--stall-timeout", "off", "--", orch.script("train.py", TRAIN))
    logs = orch.run_dir() / "logs"
    until(lambda: len(list(logs.glob("*.log"))) == 3)
    until(lambda: "hangs" in (logs / "worker-2.log").read_text(), 200)
    until(lambda: all("trains" in (logs / f"worker-{index}.log").read_text() for index in range(3)))
    pid = orch.pids()[1]
    assert orch("kill", "-q", "1", "-s", "STOP").code == 0
    until(lambda: state_letter(pid) == "T")

    document = orch("stacks", "--json").document
    stacks = {task: TaskStack.model_validate(stack) for task, stack in document["stacks"].items()}
    assert document["silent"] == []
    assert {task: stack.how for task, stack in stacks.items()} == {
        "worker:0": "signal",
        "worker:1": "py-spy",
        "worker:2": "signal",
    }
    assert describe_place(stacks["worker:0"]) == f"in TensorFlow, called from main (train.py:{FIT})", stacks
    assert describe_place(stacks["worker:1"]) == "stopped by SIGSTOP"
    assert stacks["worker:2"].frames[0] == f"train.py:{LOCK} hang_in_c"
    assert find_blocking_task(stacks, dict.fromkeys(stacks, 5.0), {}) == ("worker:1", "stopped by SIGSTOP")
    del stacks["worker:1"]
    why = f"in hang_in_c (train.py:{LOCK}), while the other one waits in TensorFlow"
    assert find_blocking_task(stacks, dict.fromkeys(stacks, 5.0), {}) == ("worker:2", why)

    # It stays stopped, and is killed.
    assert state_letter(pid) == "T"
    assert orch("down", "-q", "--force").code == 0
    assert signal.SIGKILL in {task["signal"] for task in orch.result()["tasks"]}
