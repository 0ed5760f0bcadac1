"""A plain TensorFlow script is stopped in each of its phases: its `finally` runs, and nothing is left."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import psutil
import pytest
from orch_command import Orch, Started
from waiting import lives, until

_START_S = 180.0
pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

SCRIPT = """
import os, sys, time
me = os.environ["ORCH_TASK"]
try:
    print("begins", flush=True)
    import tensorflow as tf
    print("joins", flush=True)
    while me == "worker:1" and not os.path.exists("go"):
        time.sleep(0.01)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensors((tf.ones([8]), tf.ones([1]))).repeat().batch(16)
    model.fit(data, epochs=100000, steps_per_epoch=20, verbose=2)
finally:
    print("cleaned up", flush=True)
"""

PREEMPTIBLE = """
import os, sys
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    number = tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(number=number)
where = os.path.join("saved", os.environ["ORCH_TASK"].replace(":", "-"))
manager = tf.train.CheckpointManager(checkpoint, where, max_to_keep=2)
handler = tf.distribute.experimental.PreemptionCheckpointHandler(strategy.cluster_resolver, manager)

@tf.function
def step():
    def one():
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([4]))
    strategy.run(one)

def counted():
    step()
    number.assign_add(1)

while True:
    handler.run(counted)
    if int(number.numpy()) % 50 == 0:
        print("step", int(number.numpy()), flush=True)
"""


def _log(orch: Orch, index: int) -> str:
    path = orch.run_dir() / "logs" / f"worker-{index}.log"
    return path.read_text() if path.exists() else ""


def _wait_for(orch: Orch, started: Started, pattern: str) -> None:
    """Wait until both workers have printed it."""

    def printed() -> bool:
        return bool(orch.run_dirs()) and all(re.search(pattern, _log(orch, index)) for index in (0, 1))

    until(lambda: printed() or started.ended, _START_S)
    assert not started.ended, started.out + started.err


def _is_importing(pid: int) -> bool:
    """Whether TensorFlow's libraries are being mapped."""
    return "libtensorflow_framework" in Path(f"/proc/{pid}/maps").read_text()


def _bring_to(phase: str, orch: Orch, started: Started) -> None:
    match phase:
        case "importing":
            _wait_for(orch, started, "begins")
            until(lambda: all(_is_importing(pid) for pid in orch.pids()), _START_S)
        case "joining":
            _wait_for(orch, started, "joins")
            until(lambda: "waiting" in orch.phases() or started.ended, _START_S)
            assert not started.ended, started.out + started.err
        case "training":
            (orch.directory / "go").touch()
            _wait_for(orch, started, r"Epoch 2/")


def _stop(how: str, orch: Orch, started: Started) -> int:
    """The exit code of `up`."""
    if how == "Ctrl-C":
        started.signal(signal.SIGINT)
    else:
        assert orch("down", timeout_s=_START_S).code == 0
    return started.finish(_START_S).code


def _nothing_is_left(orch: Orch, pids: list[int]) -> None:
    assert not any(lives(pid) for pid in pids)
    run = orch.run_dir()
    assert not (run / "scratch").exists() and not (run / "control").exists()
    for process in psutil.process_iter():
        try:
            assert run.name.encode() not in Path(f"/proc/{process.pid}/environ").read_bytes(), process
        except OSError:
            continue


@pytest.mark.parametrize("how", ["Ctrl-C", "down"])
@pytest.mark.parametrize("start", ["auto", "spawn"])
@pytest.mark.parametrize("phase", ["importing", "joining", "training"])
def test_script_is_stopped_in_each_phase(orch: Orch, phase: str, start: str, how: str) -> None:
    script = orch.script("train.py", SCRIPT)
    started = orch.start("-v", "up", "-n", "2", "--start", start, "--grace", "60s", "--", script)
    _bring_to(phase, orch, started)
    pids = orch.pids()
    code = _stop(how, orch, started)
    assert code == {"Ctrl-C": 130, "down": 143}[how], started.out + started.err
    assert orch.methods() == {"fork" if start == "auto" else "spawn"}, started.err
    result = orch.result()
    assert (result["outcome"], result["first_failure"]) == ("stopped", None)
    if phase != "importing":
        logs = [_log(orch, index) for index in (0, 1)]
        assert all(log.endswith("cleaned up\n") for log in logs), logs
    assert all(end["signal"] != signal.SIGKILL for end in result["tasks"]), "no task had to be killed"
    _nothing_is_left(orch, pids)


@pytest.mark.parametrize("how", ["Ctrl-C", "down"])
def test_run_is_stopped_during_preloading(orch: Orch, how: str) -> None:
    """No task exists yet, and no task starts."""
    started = orch.start("-v", "up", "-n", "2", "--", orch.script("train.py", SCRIPT))
    preloader = until(lambda: orch.preloader(), _START_S)
    until(lambda: _is_importing(preloader), _START_S)
    assert _stop(how, orch, started) == {"Ctrl-C": 130, "down": 143}[how], started.err
    assert "begins" not in started.out
    assert orch.result()["outcome"] == "stopped"
    _nothing_is_left(orch, [preloader])


@pytest.mark.parametrize("start", ["auto", "spawn"])
def test_preempted_script_saves_a_checkpoint(orch: Orch, start: str) -> None:
    script = orch.script("train.py", PREEMPTIBLE)
    started = orch.start("up", "-n", "2", "--start", start, "--grace", "60s", "--", script)
    _wait_for(orch, started, r"step \d+")
    pids = orch.pids()
    assert _stop("down", orch, started) == 143
    assert {(end["exit_code"], end["signal"]) for end in orch.result()["tasks"]} == {(42, None)}
    for index in (0, 1):
        assert list((orch.directory / "saved" / f"worker-{index}").glob("*.index"))
    _nothing_is_left(orch, pids)


def test_preemption_from_outside_is_named_in_the_report(orch: Orch) -> None:
    """A scheduler signals one of the tasks; all save and leave with 42."""
    started = orch.start("up", "-n", "2", "--failure-grace", "60s", "--", orch.script("t.py", PREEMPTIBLE))
    _wait_for(orch, started, r"step \d+")
    pids = orch.pids()
    os.kill(pids[1], signal.SIGTERM)
    done = started.finish(_START_S)
    assert done.code == 42, done.out + done.err
    assert "exit 42: it was asked to end, saved its state and asks for a restart" in done.err
    assert list((orch.directory / "saved" / "worker-0").glob("*.index"))
    _nothing_is_left(orch, pids)
