"""Strategies and loops: contradicting options, hardware that is missing, and the calls to a TPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import run_workers
from forks import ForkServer

from worker.training.options.checks import find_contradiction, loop_problem
from worker.training.options.context import tpu_problem
from worker.training.options.fields import LOOPS, STRATEGIES, Options

TPU_PROGRAM = Path(__file__).with_name("tpu_program.py")
pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (Options(replicas=2), "--replicas splits one process's CPU for mirrored and central-storage"),
        (Options(strategy="one-device", replicas=2), "not for one-device"),
        (Options(strategy="mirrored", device="CPU:0"), "--device names the device of one-device"),
        (Options(strategy="one-device", device="cpu"), "'cpu' is not a device; write CPU:0 or GPU:1"),
        (Options(strategy="mirrored", tpu="mine"), "--tpu names the TPU of --strategy tpu"),
        (Options(strategy="mirrored", communication="ring"), "mirrored has none"),
        (Options(strategy="dtensor", loop="fit"), "DTensor"),
        (Options(strategy="parameter-server", loop="fit"), "ParameterServerStrategy"),
        (
            Options(strategy="dtensor", loop="custom", mesh=(2, 1), precision="mixed_float16"),
            "dtensor computes in float32",
        ),
        (Options(strategy="tpu", tpu="mine", precision="mixed_float16"), "take --precision mixed_bfloat16"),
        (Options(strategy="tpu"), "no TPU found: this machine has no TPU or lacks the package libtpu"),
    ],
)
def test_contradicting_options_are_refused_in_one_sentence(options: Options, says: str) -> None:
    found = find_contradiction(options, {})
    assert found is not None
    assert says in found
    assert "\n" not in found


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(strategy="mirrored", replicas=4, loop="custom", precision="mixed_float16"),
        Options(strategy="central-storage", replicas=2, precision="mixed_bfloat16"),
        Options(strategy="one-device", device="gpu:1"),
        Options(strategy="one-device", device="/device:CPU:0"),
        Options(strategy="tpu", tpu="mine"),
        Options(strategy="tpu", tpu="mine", precision="mixed_bfloat16"),
        Options(communication="ring"),
    ],
)
def test_options_that_fit_together_are_accepted(options: Options) -> None:
    assert find_contradiction(options, {}) is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (Options(checkpoint="backup"), "--checkpoint backup writes none"),
        (
            Options(strategy="dtensor", loop="custom", mesh=(2, 1)),
            "those of dtensor hold its own sharded weights",
        ),
        (Options(), None),
    ],
)
def test_evaluator_that_cannot_read_the_checkpoints_is_refused(options: Options, says: str | None) -> None:
    assert find_contradiction(options, {"ORCH_TASK": "worker:0"}) is None
    found = find_contradiction(options, {"ORCH_TASK": "evaluator:0"})
    assert (found is None) if says is None else (found is not None and says in found)


def test_only_two_cells_of_strategy_and_loop_are_refused() -> None:
    refused = {
        (strategy, loop)
        for strategy in STRATEGIES
        for loop in LOOPS
        if loop_problem(strategy, loop, legacy_keras=False)
    }
    assert refused == {("parameter-server", "fit"), ("dtensor", "fit")}
    assert loop_problem("parameter-server", "fit", legacy_keras=True) is None


def test_tpu_is_found_if_it_is_named(tmp_path: Path) -> None:
    assert tpu_problem(None, {}, tmp_path) is not None
    assert tpu_problem("mine", {}, tmp_path) is None
    for variable in ("TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_CONFIG"):
        assert tpu_problem(None, {variable: "something"}, tmp_path) is None
        assert tpu_problem(None, {variable: ""}, tmp_path) is not None


def test_tpu_is_resolved_connected_initialized_and_trained_on(tmp_path: Path, forks: ForkServer) -> None:
    arguments = ["--strategy", "tpu", "--tpu", "stand-in", "--loop", "custom", "--export", "none"]
    arguments += ["--epochs", "1", "--steps-per-epoch", "5"]
    with run_workers(tmp_path, 1, arguments, program=(str(TPU_PROGRAM),), forks=forks) as cluster:
        assert cluster.wait() == [0], cluster.describe()
        (output,) = cluster.outputs
    asked = [line for line in output.splitlines() if "stand-in" in line]
    assert asked == [
        "resolve stand-in",
        "connect resolver of stand-in",
        "initialize resolver of stand-in",
        "strategy of resolver of stand-in",
    ]
    assert "tpu with custom: 2 replicas on CPU:0, CPU:1" in output
    assert "epoch 1/1: loss" in output
    assert "on 355 examples" in output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--strategy", "tpu", "--tpu", "grpc://127.0.0.1:1"], "the TPU grpc://127.0.0.1:1 cannot be used"),
        (["--strategy", "tpu", "--tpu", "grpc://nowhere"], "grpc://nowhere is not grpc://host:port"),
        (["--strategy", "tpu", "--tpu", "local"], "the TPU local cannot be used"),
        (["--strategy", "one-device", "--device", "CPU:3"], "there is no such device here; there is CPU:0"),
        (["--communication", "nccl"], "this worker sees none"),
        (["--strategy", "mirrored", "--global-batch", "33"], "take a multiple of 2, or --loop custom"),
    ],
)
def test_missing_hardware_ends_the_program_with_one_line(
    arguments: list[str], says: str, tmp_path: Path
) -> None:
    with run_workers(tmp_path, 1, arguments) as cluster:
        assert cluster.wait() == [2], cluster.describe()
        (output,) = cluster.outputs
    (line,) = [line for line in output.splitlines() if line.startswith("worker: error: ")]
    assert says in line
    assert "Traceback" not in output


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", [["--strategy", "one-device"], ["--strategy", "dtensor", "--mesh", "batch=1"]]
)
def test_unreadable_checkpoints_end_the_program_with_one_line(strategy: list[str], tmp_path: Path) -> None:
    kept = tmp_path / "checkpoints"
    kept.mkdir()
    for name in ("ckpt-1.index", "ckpt-1.data-00000-of-00001"):
        (kept / name).write_bytes(b"torn")
    with run_workers(tmp_path, 1, strategy) as cluster:
        assert cluster.wait() == [2], cluster.describe()
        (output,) = cluster.outputs
    (line,) = [line for line in output.splitlines() if line.startswith("worker: error: ")]
    assert f"none of the checkpoints in {kept} can be read (1 found)" in line
    assert "Traceback" not in output


def test_single_process_strategy_refuses_several_workers(tmp_path: Path) -> None:
    with run_workers(tmp_path, 2, ["--strategy", "one-device"], started=[0]) as cluster:
        assert cluster.wait() == [2], cluster.describe()
        assert "TF_CONFIG has 2 workers, and one-device is one process" in cluster.outputs[0]
