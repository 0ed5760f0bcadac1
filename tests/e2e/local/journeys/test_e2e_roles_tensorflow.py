"""An ordinary script on ParameterServerStrategy, undisturbed and with killed tasks."""

from __future__ import annotations

import os
import signal

import pytest
from orch_command import Finished, Orch, Started
from waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_LONG_S = 300.0
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


def _start(orch: Orch, *words: str) -> Started:
    started = orch.start("up", "--workers", "2", "--ps", "1", *words, "--", orch.script("train.py", _SCRIPT))
    until(lambda: "chief:0 | did 40\n" in started.out or started.ended, _LONG_S)
    return started


def _phases(orch: Orch) -> dict[str, str | None]:
    return {task["task"]: (task["progress"] or {}).get("phase") for task in orch.status()["tasks"]}


def _pid(orch: Orch, name: str) -> int:
    (pid,) = [task["pid"] for task in orch.status()["tasks"] if task["task"] == name]
    assert isinstance(pid, int)
    return pid


def _finish(started: Started) -> Finished:
    done = started.finish(_LONG_S)
    assert "Traceback" not in done.out.replace("SystemExit", ""), done.out
    return done


def test_chief_trains_servers_are_stopped_and_evaluator_finishes(orch: Orch) -> None:
    done = _finish(_start(orch, "--evaluator"))
    assert done.code == 0, done.err
    assert done.out.count("server ends") == 3 and "evaluator:0 | evaluated 100" in done.out
    ends = {end["task"]: (end["state"], end["exit_code"]) for end in orch.result()["tasks"]}
    assert ends == {
        "chief:0": ("succeeded", 0),
        "worker:0": ("stopped", 143),
        "worker:1": ("stopped", 143),
        "ps:0": ("stopped", 143),
        "evaluator:0": ("succeeded", 0),
    }
    # The known faults of Keras's `fit` on several workers do not concern this script.
    assert "Keras" not in done.out


def test_killed_worker_restarts_and_training_continues(orch: Orch) -> None:
    started = _start(orch, "--env", "HOLD=1")
    until(lambda: [*_phases(orch).values()] == ["training", "serving", "serving", "serving"], _LONG_S)
    # TensorFlow's coordinator can wait forever for a worker that is killed in its first steps.
    until(lambda: "chief:0 | did 600\n" in started.out or started.ended, _LONG_S)
    os.kill(_pid(orch, "worker:1"), signal.SIGKILL)
    until(lambda: orch.status()["tasks"][2]["restarts"] == 1, _LONG_S)
    until(lambda: _phases(orch)["worker:1"] == "serving", _LONG_S)
    steps = started.out.count("| did ")
    until(lambda: started.out.count("| did ") > steps + 2 or started.ended, _LONG_S)
    (orch.directory / "enough").touch()
    assert started.finish(_LONG_S).code == 0
    assert orch.result()["attempts"] == 1


def test_killed_parameter_server_ends_run_and_is_the_cause(orch: Orch) -> None:
    started = _start(orch, "--env", "HOLD=1")
    os.kill(_pid(orch, "ps:0"), signal.SIGKILL)
    assert started.finish(_LONG_S).code == 137
    result = orch.result()
    assert (result["cause"]["task"], result["first_failure"]["task"]) == ("ps:0", "ps:0")
    assert {end["task"]: end["state"] for end in result["tasks"]}["worker:0"] == "stopped"
