"""Roles with the installed command: which task ends the run, which are stopped, and what each sees; with TensorFlow
(slow), by an ordinary script and by the example, undisturbed and with killed tasks."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from orch_command import Finished, Orch, Started
from waiting import until, until_gone

# The chief and the evaluator end when their files exist; all others serve until they are stopped.
_SCRIPT = """
import os, pathlib, sys, time
role = os.environ["ORCH_TASK"].partition(":")[0]
def report(line):
    os.write(int(os.environ["ORCH_PROGRESS_FD"]), line.encode() + b"\\n")
try:
    print(os.environ.get("WHO", "-"), os.environ["TF_CONFIG"])
    if role == "chief":
        report('{"phase": "training", "epoch": 1, "step": 3, "steps": 9}')
    while role not in ("chief", "evaluator") or not pathlib.Path(f"{role}-may-go").exists():
        time.sleep(0.01)
finally:
    print(role, "ends")
"""
_STOPPED = ("stopped", 143, "stopped by orch")
_LONG_S = 300.0
_SERVERS = ("--strategy", "parameter-server", "--workers", "2", "--ps", "1")
_HELD_OUT = re.compile(r"chief:0 \| held-out accuracy (\d\.\d{4})")
_TRAINS = """
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

for _ in range(100):
    coordinator.schedule(step)
coordinator.join()
assert int(done.numpy()) >= 100
pathlib.Path("trained.new").write_text("100")
os.rename("trained.new", "trained")
"""
# At its end the chief stops its workers (argument 2: or its server), which then answer no more.
_STOPS_PEERS = """
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


def _start(orch: Orch, *words: str, tasks: int) -> Started:
    started = orch.start("up", *words, "--", orch.script("job.py", _SCRIPT))
    started.until_out('"task"', tasks)
    return started


def test_chief_ends_run_servers_are_stopped_and_the_evaluator_is_waited_for(orch: Orch) -> None:
    started = _start(orch, "--workers", "1", "--ps", "2", "--evaluator", tasks=5)
    pids = orch.pids()
    tasks = [task["task"] for task in orch.status()["tasks"]]
    assert tasks == ["chief:0", "worker:0", "ps:0", "ps:1", "evaluator:0"]
    assert orch("logs", "ps:1", "--no-prefix").out.count('"index": 1') == 1
    wrong = orch("logs", "ps:2")
    assert wrong.code == 2 and "has no task ps:2" in wrong.err

    orch.script("chief-may-go", "")
    until(lambda: orch.task("chief:0")["state"] == "succeeded")
    # Servers never exit by themselves, and are stopped at the end.
    running = ("worker:0", "ps:0", "ps:1", "evaluator:0")
    assert {orch.task(task)["state"] for task in running} == {"running"}
    refused = orch("kill", "chief:0")
    assert refused.code == 2 and "chief:0 has ended (exit 0)" in refused.err

    orch.script("evaluator-may-go", "")
    done = started.finish()
    assert done.code == 0 and done.out.count(" ends\n") == 5
    assert "waiting for evaluator:0 (10m at most)" in done.err
    until_gone(*pids)
    ended = dict.fromkeys(("chief:0", "evaluator:0"), ("succeeded", 0, "done"))
    ends = {end["task"]: (end["state"], end["exit_code"], end["end"]) for end in orch.result()["tasks"]}
    assert ends == ended | dict.fromkeys(("worker:0", "ps:0", "ps:1"), _STOPPED)
    assert orch.result()["outcome"] == "succeeded" and orch.result()["cause"] is None


def test_killed_worker_restarts_at_its_port_and_killed_server_is_the_cause(orch: Orch) -> None:
    started = _start(orch, "--workers", "2", "--ps", "1", tasks=4)
    until(lambda: (orch.task("chief:0")["progress"] or {}).get("step"))
    before = {task["task"]: task for task in orch.status()["tasks"]}
    os.kill(before["worker:1"]["pid"], signal.SIGKILL)
    started.until_out("worker:1 | ", 2)
    started.until_out('"task"', 5)
    # A task's output may be shown before its start is reported.
    until(lambda: orch.task("worker:1")["restarts"] == 1)
    assert orch.task("worker:1")["address"] == before["worker:1"]["address"]
    assert orch.task("chief:0")["pid"] == before["chief:0"]["pid"]
    first, second = [line for line in started.out.splitlines() if "worker:1 | -" in line]
    assert first == second
    assert orch("kill", "ps:0").code == 0
    done = started.finish()
    result = orch.result()
    assert (done.code, result["cause"]["task"], result["first_failure"]["task"]) == (137, "ps:0", "ps:0")
    assert result["cause"]["text"] == "SIGKILL, sent by `orch kill`"


def test_roles_of_orch_toml_and_an_evaluator_that_takes_too_long(orch: Orch) -> None:
    orch.script("job.py", _SCRIPT)
    orch.script(
        "orch.toml",
        """
command = ["job.py"]
workers = 1
evaluator-timeout = "100ms"
[roles.ps]
env = { WHO = "servant" }
[roles.evaluator]
command = ["sh", "-c", "echo $ORCH_TASK looks at $TF_CONFIG; exec sleep 600"]
""",
    )
    started = orch.start("up")
    started.until_out('"task"', 4)
    orch.script("chief-may-go", "")
    done = started.finish()
    assert done.code == 0 and "(--evaluator-timeout): it is stopped" in done.err
    assert orch.task("evaluator:0")["state"] == "stopped"
    lines = (line.partition(" | ") for line in done.out.splitlines() if "{" in line)
    text = {task: words for task, _, words in lines}
    assert text["ps:0"].startswith("servant {") and text["chief:0"].startswith("- {")
    assert text["evaluator:0"].startswith("evaluator:0 looks at {")
    assert [name for name in text if '"evaluator": [' in text[name]] == ["evaluator:0"]


def _up(orch: Orch, *words: str, code: int = 0) -> Finished:
    done = orch("up", *words, timeout_s=_LONG_S)
    assert done.code == code, done.out + done.err
    return done


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_chief_trains_servers_are_stopped_and_evaluator_finishes(orch: Orch) -> None:
    words = ("--workers", "2", "--ps", "1", "--evaluator", "--", orch.script("train.py", _TRAINS))
    done = _up(orch, *words)
    assert "Traceback" not in done.out.replace("SystemExit", "")
    assert done.out.count("server ends") == 3 and "evaluator:0 | evaluated 100" in done.out
    ends = {end["task"]: (end["state"], end["exit_code"]) for end in orch.result()["tasks"]}
    stopped = dict.fromkeys(("worker:0", "worker:1", "ps:0"), ("stopped", 143))
    assert ends == stopped | dict.fromkeys(("chief:0", "evaluator:0"), ("succeeded", 0))
    # The known faults of Keras's `fit` on several workers do not concern this script.
    assert "Keras" not in done.out


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_example_continues_after_worker_is_killed(orch: Orch) -> None:
    done = _up(orch, *_SERVERS, "--evaluator", "--chaos", "kill worker:1 at step 100")
    (accuracy,) = _HELD_OUT.findall(done.out)
    assert float(accuracy) >= 0.9  # usually 0.98: a late gradient can spoil the last epoch
    assert "evaluator:0 | epoch 10: held-out accuracy" in done.out
    result = orch.result()
    assert (result["outcome"], result["attempts"]) == ("succeeded", 1)
    restarts = {task["task"]: task["restarts"] for task in result["tasks"]}
    assert restarts == {"chief:0": 0, "worker:0": 0, "worker:1": 1, "ps:0": 0, "evaluator:0": 0}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stopped", ["worker", "ps"])
def test_exit_of_the_chief_waits_for_no_answer(orch: Orch, tmp_path: Path, stopped: str) -> None:
    """TensorFlow would remove the chief's functions from all workers, and wait for their answers."""
    script = str(orch.directory / orch.script("stopping.py", _STOPS_PEERS))
    _up(orch, *_SERVERS, "--keras", "legacy", "--grace", "1s", "--", script, str(tmp_path), stopped, code=3)
    assert orch.result()["first_failure"]["task"] == "chief:0"
    assert (tmp_path / "left").read_text() == "by the script's own function"
