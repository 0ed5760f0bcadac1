"""Ordinary TensorFlow scripts and the example on several workers, forked and spawned: the documentation's
tutorials from an empty directory, scripts with a cluster of their own or without a strategy, failures and exits,
another Python."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest
from junit_cases import junit_cases
from orch_command import Done, Finished, Orch
from shared_fixtures import TUTORIAL_VARIABLES
from waiting import lives

# Two workers that start TensorFlow on two busy cores.
_START_S = 180.0
pytestmark = pytest.mark.timeout(400)

TUTORIALS = Path(__file__).resolve().parents[1] / "tutorials"
# Relative tolerance. Printed numbers are rounded, and sums depend on the order in which workers' shares arrive.
_CLOSE = 2e-3

# Sets TF_CONFIG itself and reads the index from the command line, as tutorials do.
OWN_CLUSTER = """
import json, os, sys
os.environ["TF_CONFIG"] = json.dumps({
    "cluster": {"worker": ["localhost:%d", "localhost:%d"]},
    "task": {"type": "worker", "index": int(sys.argv[1])},
})
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
total = strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(lambda: tf.ones([])), axis=None)
print("sum", int(total), json.loads(os.environ["TF_CONFIG"])["task"]["index"], flush=True)
"""
ALONE = """
import tensorflow as tf
weight = tf.Variable(1.0)
with tf.GradientTape() as tape:
    loss = weight * weight
tf.keras.optimizers.SGD().apply([tape.gradient(loss, weight)], [weight])
print("trained", flush=True)
"""
FOREIGN = """
import os, sys
import orchestrator, thing, worker
print("found", worker.WHOSE, orchestrator.WHOSE, thing.WHOSE, os.environ["PYTHONPATH"], sys.executable)
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(tf.ones([64, 4]), tf.ones([64, 1]), batch_size=32, verbose=0)
print("fitted")
"""
# Both workers raise the same exception in code that TensorFlow calls.
BOTH_RAISE = """
import atexit, os, pathlib, time
import tensorflow as tf

def both(sign):
    pathlib.Path(sign + os.environ["ORCH_TASK"][-1]).touch()
    while not all(pathlib.Path(sign + index).exists() for index in "01"):
        time.sleep(0.01)

@tf.function
def step(x):
    return x * {"label": 1}["image"]  # raises

atexit.register(both, "raised")  # the second worker raises, too, before orch stops it
both("ready")
step(tf.ones([3]))
"""
# Endless steps, each a collective of all workers. worker:1 fails as the second word says.
_LOOP = """
import os, sys
fails = sys.argv[1] if os.environ["ORCH_TASK"] == "worker:1" else ""
if fails == "at once":
    raise ValueError("cannot begin")
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()

@tf.function
def step():
    def one():
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([8]))
    return strategy.run(one)

for number in range(1_000_000):
    step()
    if number == 50 and fails == "later":
        raise ValueError("cannot continue")
    if number == 50 and fails == "leaves":
        os._exit(0)
"""


@dataclass(frozen=True)
class Trained:
    """A finished run of a tutorial. `results`: the printed numbers of each worker."""

    done: Done
    results: list[list[float]]
    files: Path


def _train(orch: Orch, tutorial: str, *words: str, named: bool = False, method: str = "fork") -> Trained:
    """Run `orch up WORDS TUTORIAL`. `named`: under a Python that the command names."""
    files = Path(orch.variables["OUTPUT"] or "")
    before = set(orch.directory.iterdir())
    script, *then = [*([Path(sys.executable)] if named else []), TUTORIALS / tutorial]
    done = orch.run("-v", "-n", "2", *words, script=script, then=tuple(map(str, then)))
    assert done.code == 0, done.out + done.err
    assert orch.methods(done.run) == {method}
    assert not any(lives(event["pid"]) for event in done.events("task_started"))
    assert set(orch.directory.iterdir()) == before, "a run leaves nothing in the user's directory"
    return Trained(done, [_results(done.log(f"worker-{index}")) for index in (0, 1)], files)


def _results(log: str) -> list[float]:
    """The losses of the Keras tutorial, accuracies and losses of the custom loop."""
    lines = re.findall(r"^losses .*|^Epoch: .*", log, re.MULTILINE)
    return [float(number) for line in lines for number in re.findall(r"\d+\.\d+", line)]


def _up(orch: Orch, text: str, *words: str, then: tuple[str, ...] = (), code: int = 0) -> Finished:
    """Run `orch up WORDS -- train.py THEN` with this text of train.py."""
    done = orch.start("up", *words, "--", orch.script("train.py", text), *then).finish(_START_S)
    assert done.code == code, done.out + done.err
    return done


def _two_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("", 0))
        other.bind(("", 0))
        return one.getsockname()[1], other.getsockname()[1]


def test_keras_tutorial_trains_on_forked_workers(tensorflow_orch: Orch) -> None:
    trained = _train(tensorflow_orch, "multi_worker_keras.py", "--expect-cluster")
    assert [each["method"] for each in trained.done.events("task_started")] == ["fork", "fork"]
    assert "never joined" not in trained.done.err
    assert [task["joined"] for task in trained.done.result["tasks"]] == [True, True]
    first, second = trained.results
    assert len(first) == 2 and first == second, "all workers see the same losses"
    assert (trained.files / "keras-model.keras").stat().st_size > 10_000
    assert list((trained.files / "ckpt").glob("ckpt-*.index"))
    assert not list(trained.files.glob("backup-*")), "which Keras removes when it is done"
    # worker:0 trains the loaded model then.
    progress = tensorflow_orch.task("worker:1", trained.done.run.name)["progress"]
    steps = {"phase": "training", "epoch": 2, "epochs": 2, "step": 5, "steps": 5}
    assert steps.items() <= progress.items()
    assert progress["loss"] > 0 and progress["steps_per_s"] > 0 and set(progress["metrics"]) == {"accuracy"}
    assert trained.done.events("task_progressed")[0]["progress"]["phase"] == "importing"


def test_script_without_a_strategy_is_called_copies_and_refused_on_request(tensorflow_orch: Orch) -> None:
    done = tensorflow_orch.run("-n", "2", "--expect-cluster", script=ALONE)
    assert done.code == 1, done.out + done.err
    assert done.out.count("trained") == 2
    first, *_, last = done.err.splitlines()
    assert first == (
        "orch: train.py creates no strategy for several workers: 2 workers would train 2 independent copies;"
        " create a MultiWorkerMirroredStrategy, or use --workers 1"
    )
    said = "train.py never joined the cluster: 2 independent copies were trained."
    assert said in last and done.result["cause"]["kind"] == "not_distributed"


@pytest.mark.slow
def test_script_with_a_cluster_of_its_own_trains_in_orchs(orch: Orch) -> None:
    done = _up(orch, OWN_CLUSTER % _two_ports(), "-n", "2", "--expect-cluster", then=("0",))
    assert orch.methods() == {"fork"}
    for index in (0, 1):
        assert f"worker:{index} | sum 2 {index}\n" in done.out
        assert done.out.count(f"worker:{index} | orch: train.py line 3 sets TF_CONFIG; the task keeps ") == 1
    assert [task["joined"] for task in orch.result()["tasks"]] == [True, True]


@pytest.mark.slow
def test_wait_at_an_address_of_the_scripts_own_is_ended_and_named(orch: Orch) -> None:
    """Each task waits at a different port, since TensorFlow may refuse a second task with the same index."""
    port, other = _two_ports()
    mine = f'"localhost:" + ("{port}" if os.environ["ORCH_TASK"] == "worker:0" else "{_two_ports()[0]}")'
    text = (OWN_CLUSTER % (port, other)).replace(f'"localhost:{port}"', mine)
    # Long enough for the second task to start on a busy machine.
    limits = ("--start-timeout", "8s", "--timeout", "2m")
    _up(orch, text, "-n", "2", "--script-tf-config", *limits, then=("0",), code=124)
    cause = orch.result()["cause"]
    assert (cause["task"], cause["kind"]) == ("worker:0", "limit")
    assert cause["text"].startswith(
        f"not joined after 8s (--start-timeout): it waits for the others at localhost:{port},"
        " not at its own address 127.0.0.1:"
    )


@pytest.mark.slow
def test_custom_loop_has_the_same_results_forked_and_spawned(orch: Orch) -> None:
    """Under a named Python, too."""
    orch.variables = {**TUTORIAL_VARIABLES, "OUTPUT": str(orch.directory.parent / "forked")}
    forked = _train(orch, "custom_loop.py", named=True)
    orch.variables["OUTPUT"] = str(orch.directory.parent / "spawned")
    spawned = _train(orch, "custom_loop.py", "--start", "spawn", method="spawn")
    assert "orch: preloaded tensorflow, tf_keras in " in forked.done.err
    assert "orch: not preloaded: --start spawn asks for it" in spawned.done.err
    why = "uses reset_states of a metric, which Keras 3 does not have: tf_keras is used"
    for trained in (forked, spawned):
        assert why in trained.done.err
        assert len(trained.results[0]) == 4, "an accuracy and a loss in each of two epochs"
        assert trained.results[0] == trained.results[1]
        assert list((trained.files / "ckpt").glob("ckpt-*.index"))
    assert forked.results[0] == pytest.approx(spawned.results[0], rel=_CLOSE)


@pytest.mark.slow
def test_equal_failures_in_tensorflow_are_one(orch: Orch) -> None:
    """The cause is the user's own message and line, wherever it is shown."""
    line = BOTH_RAISE[: BOTH_RAISE.index("# raises")].count("\n") + 1
    done = _up(orch, BOTH_RAISE, "-n", "2", "--junit", "report.xml", code=1)
    cause = f"both workers failed: KeyError: 'image' (train.py:{line})"
    assert done.err.splitlines()[-1] == f"orch: {cause}", done.err
    assert junit_cases(orch.directory / "report.xml")[-1].message == cause
    first = orch.result()["first_failure"]
    assert (first["exception"], first["place"]) == ("KeyError: 'image'", f"{orch.directory}/train.py:{line}")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_python_without_orch(orch: Orch, method: str) -> None:
    """It has modules with the names of orch's packages, a sitecustomize, and PYTHONPATH is set."""
    python = _python_without_orch(orch.directory.parent / "venv")
    lib = orch.directory.parent / "lib"
    lib.mkdir()
    for name in ("worker.py", "orchestrator.py"):
        orch.script(name, f"WHOSE = 'my {name}'")
    (lib / "thing.py").write_text("WHOSE = 'my thing'")
    (lib / "sitecustomize.py").write_text("print('customised', flush=True)")
    start = "auto" if method == "fork" else "spawn"
    words = ("-v", "up", "-n", "2", "--start", start, "--", str(python), orch.script("train.py", FOREIGN))
    done = orch.start(*words, env={"PYTHONPATH": str(lib)}).finish(_START_S)
    assert done.code == 0, done.out + done.err
    assert orch.methods() == {method}
    found = f"customised\nfound my worker.py my orchestrator.py my thing {lib} {python}\n"
    for index in (0, 1):
        log = (orch.run_dir() / "logs" / f"worker-{index}.log").read_text()
        assert log.startswith(found) and "fitted" in log, log


def _python_without_orch(venv: Path) -> Path:
    """A virtual environment with the packages that are installed here, without orch."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=_START_S)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "more.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    python = venv / "bin" / "python"
    imported = subprocess.run(
        [python, "-c", "import orchestrator"], capture_output=True, cwd=venv, check=False
    )
    if imported.returncode == 0:
        pytest.skip("orch is installed as files here, so the other environment sees it too")
    return python


def _accuracies(out: str) -> list[float]:
    return [float(number) for number in re.findall(r"held-out accuracy ([0-9.]+)", out)]


def test_two_workers_train(cold_orch: Orch) -> None:
    """Its preloader imports other modules than the one that the other scripts share."""
    orch = cold_orch
    done = orch("up", "-n", "2", "--", "--epochs", "1", "--steps-per-epoch", "10")
    assert done.code == 0, done.out + done.err
    losses = re.findall(r"^worker:(\d) \| 10/10 .* - (accuracy: \S+ - loss: \S+)", done.out, re.MULTILINE)
    assert sorted(task for task, _ in losses) == ["0", "1"]
    assert len({loss for _, loss in losses}) == 1, "all workers see the same loss"
    assert len(set(_accuracies(done.out))) == 1
    assert (orch.run_dir() / "checkpoints" / "model.keras").exists()
    assert not (orch.run_dir() / "scratch").exists(), "scratch directories are removed"
    assert all(task["progress"] is not None for task in orch.status()["tasks"])


@pytest.mark.slow
def test_second_run_resumes_training(cold_orch: Orch) -> None:
    words = ("up", "-n", "2", "--checkpoint-dir", "kept", "--")
    assert cold_orch.start(*words, "--epochs", "1").finish(_START_S).code == 0
    again = cold_orch.start(*words, "--epochs", "2").finish(_START_S)
    assert again.code == 0, again.out + again.err
    assert "Epoch 2/2" in again.out and "Epoch 1/2" not in again.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fails", "kind", "first", "said"),
    [
        ("at once", "exited", "worker:1", "orch: worker:1 failed: ValueError: cannot begin ("),
        ("later", "exited", "worker:1", "orch: worker:1 failed: ValueError: cannot continue ("),
        ("leaves", "left_early", "worker:0", "left early"),
    ],
)
def test_worker_that_failed_first_is_the_cause(
    cold_orch: Orch, fails: str, kind: str, first: str, said: str
) -> None:
    script = cold_orch.script("loop.py", _LOOP)
    done = cold_orch.start("up", "-n", "2", "--", script, fails).finish(_START_S)
    result = cold_orch.result()
    assert (result["cause"]["task"], result["cause"]["kind"]) == ("worker:1", kind), done.err
    assert result["first_failure"]["task"] == first and done.code != 0
    assert said in done.err


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 4, 8])
def test_accuracy(cold_orch: Orch, workers: int) -> None:
    done = cold_orch.start("up", "-n", str(workers)).finish(_START_S * 2)
    assert done.code == 0, done.out + done.err
    accuracies = _accuracies(done.out)
    assert len(accuracies) == workers and len(set(accuracies)) == 1
    assert accuracies[0] >= 0.95
    load = "import sys, keras; keras.models.load_model(sys.argv[1]).summary()"
    model = cold_orch.run_dir() / "checkpoints" / "model.keras"
    subprocess.run([sys.executable, "-c", load, model], check=True, capture_output=True, timeout=_START_S)
