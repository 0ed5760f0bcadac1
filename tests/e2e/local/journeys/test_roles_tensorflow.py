"""Training with parameter servers and with an evaluator: by an ordinary script and by the built-in program, undisturbed
and with killed tasks."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from orch_command import Finished, Orch, Started
from waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_LONG_S = 300.0
_SERVERS = ("--strategy", "parameter-server", "--workers", "2", "--ps", "1")
_HELD_OUT = re.compile(r"chief:0 \| held-out accuracy (\d\.\d{4})")
_SCRIPT = """
import os, pathlib, sys
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
role = resolver.task_type
if role == "evaluator":
    assert resolver.cluster_spec().num_tasks("evaluator") == 1
    while not pathlib.Path("trained").exists():
        tf.io.gfile.exists("trained")
    print("evaluated", pathlib.Path("trained").read_text(), flush=True)
    sys.exit(0)
if role in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=role, task_index=resolver.task_id, protocol="grpc", start=True
    )
    try:
        server.join()
    finally:
        print("server ends", flush=True)
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    done = tf.Variable(0, dtype=tf.int64)

@tf.function
def step():
    return strategy.run(lambda: done.assign_add(1))

steps = 0
while steps < 100 or (not pathlib.Path("enough").exists() and "HOLD" in os.environ):
    for _ in range(20):
        coordinator.schedule(step)
    coordinator.join()
    steps += 20
    print(f"did {steps}", flush=True)
    os.write(int(os.environ["ORCH_PROGRESS_FD"]), b'{"phase": "training", "step": %d}\\n' % steps)
assert int(done.numpy()) >= steps
pathlib.Path("trained.new").write_text(str(steps))
os.rename("trained.new", "trained")
"""
# At its end the chief stops its workers (argument 2: or its server), which then answer no more.
_STOPPING = """
import atexit, os, pathlib, signal, sys

here = pathlib.Path(sys.argv[1])
atexit.register(lambda: (here / "left").write_text("by the script's own function"))

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    (here / f"{resolver.task_type}-{resolver.task_id}").write_text(str(os.getpid()))
    tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    ).join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.InputLayer((4,)), tf.keras.layers.Dense(2)])
    model.compile(optimizer=tf.keras.optimizers.legacy.SGD(0.01), loss="mse")


def numbers(context):
    return tf.data.Dataset.from_tensors((tf.ones(4), tf.ones(2))).repeat().batch(8)


model.fit(tf.keras.utils.experimental.DatasetCreator(numbers), steps_per_epoch=5, verbose=2)
for task in here.glob(f"{sys.argv[2]}-*"):
    os.kill(int(task.read_text()), signal.SIGSTOP)
raise SystemExit(3)
"""


def _start(orch: Orch, *words: str) -> Started:
    started = orch.start("up", "--workers", "2", "--ps", "1", *words, "--", orch.script("train.py", _SCRIPT))
    _until_did(started, 40)
    return started


def _until_did(started: Started, steps: int) -> None:
    until(lambda: f"chief:0 | did {steps}\n" in started.out or started.ended, _LONG_S)


def _up(orch: Orch, *words: str, code: int = 0) -> Finished:
    done = orch("up", *words, timeout_s=_LONG_S)
    assert done.code == code, done.out + done.err
    return done


def test_chief_trains_servers_are_stopped_and_evaluator_finishes(orch: Orch) -> None:
    done = _start(orch, "--evaluator").finish(_LONG_S)
    assert done.code == 0, done.err
    assert "Traceback" not in done.out.replace("SystemExit", "")
    assert done.out.count("server ends") == 3 and "evaluator:0 | evaluated 100" in done.out
    ends = {end["task"]: (end["state"], end["exit_code"]) for end in orch.result()["tasks"]}
    stopped = dict.fromkeys(("worker:0", "worker:1", "ps:0"), ("stopped", 143))
    assert ends == stopped | dict.fromkeys(("chief:0", "evaluator:0"), ("succeeded", 0))
    # The known faults of Keras's `fit` on several workers do not concern this script.
    assert "Keras" not in done.out


def test_training_continues_after_a_killed_worker_and_ends_with_a_killed_server(orch: Orch) -> None:
    started = _start(orch, "--env", "HOLD=1")
    # TensorFlow's coordinator can wait forever for a worker that is killed in its first steps.
    _until_did(started, 600)
    os.kill(orch.task("worker:1")["pid"], signal.SIGKILL)
    until(lambda: orch.task("worker:1")["restarts"] == 1, _LONG_S)
    until(lambda: (orch.task("worker:1")["progress"] or {}).get("phase") == "serving", _LONG_S)
    steps = started.out.count("| did ")
    until(lambda: started.out.count("| did ") > steps + 2 or started.ended, _LONG_S)
    os.kill(orch.task("ps:0")["pid"], signal.SIGKILL)
    assert started.finish(_LONG_S).code == 137
    result = orch.result()
    assert (result["attempts"], result["cause"]["task"], result["first_failure"]["task"]) == (
        1,
        "ps:0",
        "ps:0",
    )
    assert {end["task"]: end["state"] for end in result["tasks"]}["worker:0"] == "stopped"


def test_built_in_training_continues_after_worker_is_killed(orch: Orch) -> None:
    done = _up(orch, *_SERVERS, "--evaluator", "--chaos", "kill worker:1 at step 100")
    (accuracy,) = _HELD_OUT.findall(done.out)
    assert float(accuracy) >= 0.9  # usually 0.98: a late gradient can spoil the last epoch
    assert "evaluator:0 | ckpt-10 of epoch 10/10: held-out accuracy" in done.out
    result = orch.result()
    assert (result["outcome"], result["attempts"]) == ("succeeded", 1)
    restarts = {task["task"]: task["restarts"] for task in result["tasks"]}
    assert restarts == {"chief:0": 0, "worker:0": 0, "worker:1": 1, "ps:0": 0, "evaluator:0": 0}


@pytest.mark.parametrize("stopped", ["worker", "ps"])
def test_exit_of_the_chief_waits_for_no_answer(orch: Orch, tmp_path: Path, stopped: str) -> None:
    """TensorFlow would remove the chief's functions from all workers, and wait for their answers."""
    script = str(orch.directory / orch.script("stopping.py", _STOPPING))
    _up(orch, *_SERVERS, "--keras", "legacy", "--grace", "1s", "--", script, str(tmp_path), stopped, code=3)
    assert orch.result()["first_failure"]["task"] == "chief:0"
    assert (tmp_path / "left").read_text() == "by the script's own function"
