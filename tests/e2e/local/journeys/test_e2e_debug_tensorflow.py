"""`--debug` with real TensorFlow: its own limits wait, too."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest
from dap_client import DapClient
from orch_command import Orch
from waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
# TensorFlow gives a worker up that has sent no heartbeat for 20 s.
_PAUSE_S = 30.0
_LOOP = """
import os
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()

@tf.function
def step():
    def one():
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([8]))
    return strategy.run(one)

for number in range(40):
    step()
    if number == 20:
        print("half", flush=True)
print("end", flush=True)
"""
_HALF = 15


def test_a_forked_task_that_sends_no_heartbeats_goes_on_to_the_end(orch: Orch) -> None:
    loop = orch.directory / orch.script("loop.py", _LOOP)
    up = orch.start("up", "-n", "2", "--debug", "worker:1", "--stall-timeout", "10", "--", str(loop))
    found = until(lambda: re.search(r'"port": (\d+)', up.err) or up.ended, 180.0)
    assert isinstance(found, re.Match), up.out + up.err
    with DapClient(int(found[1])) as client:
        client.attach(loop, _HALF)
        thread = client.stopped()
        pid = int(client.evaluate(thread, "os.getpid()"))
        os.kill(pid, signal.SIGSTOP)
        time.sleep(_PAUSE_S)
        os.kill(pid, signal.SIGCONT)
        client.resume(thread)
        done = up.finish(180.0)
    assert done.code == 0, done.out + done.err
    assert all(f"worker:{index} | end" in done.out for index in (0, 1))
    assert {event["method"] for event in orch.events("task_started")} == {"fork"}
