"""Real TensorFlow under the installed `orch`: it trains, and when a worker fails, that worker is the cause."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from orch_command import Orch, Started
from waiting import lives, until

# Seconds for workers to import TensorFlow one after another on two busy cores.
_START_S = 180.0
pytestmark = pytest.mark.timeout(400)

# Endless steps, each a collective of all workers. FAIL selects how worker:1 fails.
_LOOP = """
import os, sys
index, fail = int(os.environ["ORCH_TASK"][-1]), os.environ.get("FAIL", "")
if fail == "start" and index == 1:
    raise ValueError("worker one cannot begin")
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()

@tf.function
def step():
    def one():
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([8]))
    return strategy.run(one)

for number in range(1_000_000):
    step()
    if number % 20 == 0:
        print("step", number, flush=True)
    if number == 50 and index == 1 and fail == "middle":
        raise ValueError("worker one cannot continue")
    if number == 50 and index == 1 and fail == "leave":
        os._exit(0)
"""


@pytest.fixture
def loop(cold_orch: Orch) -> str:
    return cold_orch.script("loop.py", _LOOP)


def _training(orch: Orch, loop: str, *words: str) -> Started:
    """Start two workers and wait until both have made steps."""
    started = orch.start("up", "-n", "2", *words, "--", loop)
    until(lambda: all(f"worker:{i} | step 40" in started.out for i in (0, 1)) or started.ended, _START_S)
    assert not started.ended, started.out + started.err
    return started


def _check_nothing_is_left(orch: Orch, pids: list[int]) -> None:
    assert not any(lives(pid) for pid in pids)
    run_id = orch.run_dir().name.encode()
    for process in psutil.process_iter():
        try:
            assert run_id not in Path(f"/proc/{process.pid}/environ").read_bytes(), process
        except OSError:
            continue
    ports = [int(task["address"].rpartition(":")[2]) for task in orch.status()["tasks"]]
    # Another program may use one of the ports for a moment.
    until(lambda: all(_is_free(port) for port in ports))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Ignores TIME_WAIT, but not a program that holds or serves the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _check_cause(orch: Orch, code: int, kind: str) -> None:
    result = orch.result()
    assert (result["outcome"], result["exit_code"]) == ("failed", code)
    assert (result["cause"]["task"], result["cause"]["kind"]) == ("worker:1", kind)


def _accuracies(out: str) -> list[float]:
    return [float(number) for number in re.findall(r"held-out accuracy ([0-9.]+)", out)]


def test_two_workers_train(cold_orch: Orch) -> None:
    started = cold_orch.start("up", "-n", "2", "--", "--epochs", "1", "--steps-per-epoch", "10")
    done = started.finish(_START_S)
    assert done.code == 0, done.out + done.err
    losses = re.findall(r"^worker:(\d) \| epoch 1/1: (loss \S+, accuracy \S+),", done.out, re.MULTILINE)
    assert sorted(task for task, _ in losses) == ["0", "1"]
    assert len({loss for _, loss in losses}) == 1, "all workers see the same loss"
    assert len(set(_accuracies(done.out))) == 1
    run = cold_orch.run_dir()
    assert (run / "checkpoints" / "model.keras").exists()
    assert not (run / "scratch").exists(), "scratch directories are removed"
    progress = [task["progress"] for task in cold_orch.status()["tasks"]]
    assert all(report is not None for report in progress)
    _check_nothing_is_left(cold_orch, cold_orch.pids())


def test_killed_worker_is_the_cause(cold_orch: Orch, loop: str) -> None:
    started = _training(cold_orch, loop)
    pids = cold_orch.pids()
    psutil.Process(pids[1]).kill()
    done = started.finish(_START_S)
    assert done.code == 137
    assert done.err.splitlines()[-1].startswith("orch: worker:1 failed: SIGKILL")
    _check_cause(cold_orch, 137, "exited")
    _check_nothing_is_left(cold_orch, pids)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "words"),
    [("start", "cannot begin"), ("middle", "cannot continue")],
)
def test_exception_in_worker_is_the_cause(cold_orch: Orch, loop: str, when: str, words: str) -> None:
    started = cold_orch.start("up", "-n", "2", "-e", f"FAIL={when}", "--", loop)
    done = started.finish(_START_S)
    assert done.code == 1, done.out + done.err
    assert done.err.splitlines()[-1].startswith(f"orch: worker:1 failed: ValueError: worker one {words} (")
    _check_cause(cold_orch, 1, "exited")
    _check_nothing_is_left(cold_orch, cold_orch.pids())


@pytest.mark.slow
def test_ctrl_c_during_training(cold_orch: Orch) -> None:
    """The built-in program ends in order, although TensorFlow handles SIGTERM itself."""
    started = cold_orch.start("up", "-n", "2", "--grace", "60s", "--", "--epochs", "100000")
    until(lambda: "worker:1 | epoch 2/" in started.out or started.ended, _START_S)
    assert not started.ended, started.out + started.err
    pids = cold_orch.pids()
    started.signal(signal.SIGINT)
    assert started.finish(_START_S).code == 130
    ends = cold_orch.result()["tasks"]
    assert [end["signal"] for end in ends] != [9, 9], "no task had to be killed"
    _check_nothing_is_left(cold_orch, pids)


@pytest.mark.slow
def test_stopped_worker_is_the_cause(cold_orch: Orch, loop: str) -> None:
    """Its peer fails after 20 s without a heartbeat, but the stopped worker is the cause."""
    started = _training(cold_orch, loop)
    pids = cold_orch.pids()
    psutil.Process(pids[1]).suspend()
    done = started.finish(_START_S)
    assert done.code != 0
    assert done.err.splitlines()[-1].startswith("orch: worker:1: ")
    assert cold_orch.result()["first_failure"]["task"] == "worker:0"
    assert (cold_orch.result()["cause"]["task"], cold_orch.result()["cause"]["kind"]) == (
        "worker:1",
        "stopped",
    )
    _check_nothing_is_left(cold_orch, pids)


@pytest.mark.slow
def test_worker_that_exits_early_is_the_cause(cold_orch: Orch, loop: str) -> None:
    started = cold_orch.start("up", "-n", "2", "-e", "FAIL=leave", "--", loop)
    done = started.finish(_START_S)
    assert done.code != 0
    assert (cold_orch.result()["cause"]["task"], cold_orch.result()["cause"]["kind"]) == (
        "worker:1",
        "left_early",
    )
    assert cold_orch.result()["first_failure"]["task"] == "worker:0"
    assert "left early" in done.err
    _check_nothing_is_left(cold_orch, cold_orch.pids())


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 4, 8])
def test_accuracy_of_built_in_program(cold_orch: Orch, workers: int) -> None:
    started = cold_orch.start("up", "-n", str(workers))
    done = started.finish(_START_S * 2)
    assert done.code == 0, done.out + done.err
    accuracies = _accuracies(done.out)
    assert len(accuracies) == workers and len(set(accuracies)) == 1
    assert accuracies[0] >= 0.95
    load = "import sys, keras; keras.models.load_model(sys.argv[1]).summary()"
    model = cold_orch.run_dir() / "checkpoints" / "model.keras"
    subprocess.run([sys.executable, "-c", load, model], check=True, capture_output=True, timeout=_START_S)


@pytest.mark.slow
def test_second_run_resumes_training(cold_orch: Orch) -> None:
    words = ("up", "-n", "2", "--checkpoint-dir", "kept", "--")
    assert cold_orch.start(*words, "--epochs", "1").finish(_START_S).code == 0
    again = cold_orch.start(*words, "--epochs", "2").finish(_START_S)
    assert again.code == 0, again.out + again.err
    assert "epoch 2/2" in again.out and "epoch 1/2" not in again.out
