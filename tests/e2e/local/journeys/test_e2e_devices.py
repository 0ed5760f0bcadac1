"""Strategies and devices from the command line to the task: refusals, variables, and what TensorFlow finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from orch_command import Orch
from waiting import PATIENCE_S

from orchestrator.host.devices import gpu_inventory, has_local_tpu

LOOK = """
import json, os
names = ("ORCH_TASK", "ORCH_MESH", "CUDA_VISIBLE_DEVICES", "DTENSOR_CLIENT_ID", "DTENSOR_JOBS")
print(json.dumps({name: os.environ.get(name) for name in names}))
"""
# From the tutorial of MirroredStrategy.
TUTORIAL = """
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
print("Number of devices: {}".format(strategy.num_replicas_in_sync))
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer="adam")
features = tf.random.normal((64, 8))
dataset = tf.data.Dataset.from_tensor_slices((features, features[:, :1])).batch(16)
model.fit(dataset, epochs=2, verbose=2)
"""
CLIENT = """
import tensorflow as tf
from tensorflow.experimental import dtensor

kind = dtensor.initialize_accelerator_system()
mesh = dtensor.create_distributed_mesh([("batch", 2), ("model", 2)], device_type=kind)
layout = dtensor.Layout([dtensor.UNSHARDED, "model"], mesh)
ones = dtensor.call_with_layout(tf.ones, layout, shape=(4, 4))
local = dtensor.unpack(ones)
print(f"client {dtensor.client_id()} of {dtensor.num_clients()}: {len(local)} of {mesh.size} devices,",
      f"parts of {local[0].shape}, sum {tf.reduce_sum(ones).numpy():g}")
dtensor.barrier(mesh)
"""
without_gpus = pytest.mark.skipif(bool(gpu_inventory().gpus), reason="this machine has GPUs")


def methods_of(run: Path) -> set[str]:
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return {event["method"] for event in events if event["type"] == "task_started"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--strategy", "mirrored", "-n", "2"], "--workers: mirrored runs as one process, since"),
        (["--strategy", "mirrored", "--", "--strategy", "one-device"], "put it before the --"),
        pytest.param(
            ["--strategy", "tpu"],
            "--strategy tpu: no TPU found",
            marks=pytest.mark.skipif(has_local_tpu(), reason="there is one"),
        ),
        pytest.param(["--gpus", "0,1", "-n", "2"], "--gpus: there is no GPU 0", marks=without_gpus),
        pytest.param(
            ["--communication", "nccl", "-n", "2"], "--communication: NCCL sums on GPUs", marks=without_gpus
        ),
    ],
)
def test_impossible_request_is_refused_before_start(orch: Orch, words: list[str], says: str) -> None:
    done = orch.within(
        "up", *words, env=dict.fromkeys(("TPU_NAME", "TPU_CONFIG", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"))
    )
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert len(done.err.splitlines()) == 1
    assert not orch.run_dirs()


def test_tasks_with_different_environments_are_forked(orch: Orch) -> None:
    orch.script("look.py", LOOK)
    done = orch("up", "--preload", "json", "--no-prefix", "--mesh", "batch=2,model=2", "-n", "2", "--gpus", "none",
                "--", "look.py")  # fmt: skip
    assert done.code == 0, done.err
    assert methods_of(orch.run_dir()) == {"fork"}
    variables = {each["ORCH_TASK"]: each for each in map(json.loads, done.lines)}
    assert {task: each["DTENSOR_CLIENT_ID"] for task, each in variables.items()} == {
        "worker:0": "0",
        "worker:1": "1",
    }
    assert {each["CUDA_VISIBLE_DEVICES"] for each in variables.values()} == {"-1"}
    (jobs,) = {each["DTENSOR_JOBS"] for each in variables.values()}
    assert jobs.count("127.0.0.1:") == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("start", ["auto", "spawn"])
def test_tutorial_trains_on_requested_replicas(orch: Orch, start: str) -> None:
    orch.script("tutorial.py", TUTORIAL)
    words = ("--strategy", "mirrored", "--replicas", "2", "--start", start)
    done = orch("up", *words, "--", "tutorial.py", timeout_s=4 * PATIENCE_S)
    assert done.code == 0, done.err
    assert "worker:0 | Number of devices: 2" in done.lines
    assert "Epoch 2/2" in done.out
    assert methods_of(orch.run_dir()) == {"fork" if start == "auto" else "spawn"}


@pytest.mark.slow
@pytest.mark.timeout(600)
@without_gpus
def test_dtensor_clients_form_one_mesh(orch: Orch) -> None:
    orch.script("client.py", CLIENT)
    done = orch("up", "--mesh", "batch=2,model=2", "-n", "2", "--", "client.py", timeout_s=4 * PATIENCE_S)
    assert done.code == 0, done.err
    assert methods_of(orch.run_dir()) == {"fork"}
    for client in (0, 1):
        assert (
            f"worker:{client} | client {client} of 2: 2 of 4 devices, parts of (4, 2), sum 16" in done.lines
        )
