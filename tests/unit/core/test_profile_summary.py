"""The times of each task, and the tasks that it waited for, from recordings of TensorFlow's profiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recordings import Lines, xspace

from worker.programs import summarize_profile

REDUCE = "StatefulPartitionedCall/CollectiveReduceV2:CollectiveReduceV2"


def summary(directory: Path, start: float = 1000, plane: str = "/host:CPU", **tasks: Lines) -> dict[str, Any]:
    """The summary of recordings of 0.1 s, worker_0 and so on. That of worker:1 begins at `start`."""
    for name, lines in tasks.items():
        task = name.replace("_", "-")
        recording = xspace(lines, start if task == "worker-1" else 1000, 1100, plane)
        (directory / f"{task}.xplane.pb").write_bytes(recording)
        facts = {"task": name.replace("_", ":"), "first": 10, "last": 19}
        (directory / f"{task}.json").write_text(json.dumps(facts))
    found: dict[str, Any] = summarize_profile.summarize(directory)
    return found


def test_each_moment_of_the_recording_counts_once(tmp_path: Path) -> None:
    on_cpu: Lines = {
        "tf_Compute/1": [("dense/MatMul:MatMul", 10, 30), ("KernelAndDeviceFunc::Run", 0, 100), ("a:MatMul", 95, 130)],
        "tf_Compute/2": [("dense/Relu:Relu", 20, 40), ("ExecutorState::Process", 0, 100)],
        # Half of it while something was computed.
        "collective_ops/1": [(REDUCE, 30, 50)],
        "tf_data_iterator/1": [("Iterator::Root::Map", 45, 70), ("f/EagerPyFunc:EagerPyFunc", 60, 65)],
        "python": [("next_step", 0, 100), ("EagerLocalExecute: __inference_step_1", 0, 100)],
    }  # fmt: skip
    on_gpu: Lines = {
        "Stream #13(Compute)": [("volta_sgemm", 0, 20), ("ncclDevKernel_AllReduce_Sum", 20, 50)],
        "XLA Modules": [("module", 0, 100)],
    }
    # input, compute, collective, other
    for plane, lines, wanted in (
        ("/host:CPU", on_cpu, [20, 35, 10, 35]),
        ("/device:GPU:0", on_gpu, [0, 20, 30, 50]),
    ):
        its = summary(tmp_path, plane=plane, worker_0=lines)["tasks"]["worker:0"]
        shares = [round(its[name] * 1000, 3) for name in ("input", "compute", "collective", "other", "total")]
        assert shares == [*wanted, 100]


def test_the_last_one_to_come_is_waited_for(tmp_path: Path) -> None:
    twice: Lines = {"collective_ops/1": [(REDUCE, 10, 40), (REDUCE, 60, 70)]}
    late: Lines = {"collective_ops/1": [(REDUCE, 25, 35), (REDUCE, 53, 65)]}
    waits = summary(tmp_path, start=1005, worker_0=twice, worker_1=late, ps_0={})["waits"]
    found = {task: {other: round(s * 1000, 3) for other, s in to.items()} for task, to in waits.items()}
    assert found == {"worker:0": {"worker:1": 20.0}, "worker:1": {"worker:0": 2.0}}
    # A collective of which a part was cut is left out.
    assert summary(tmp_path, worker_1={"collective_ops/1": [(REDUCE, 25, 35)]})["waits"] == {}


def test_damaged_recordings_are_named(tmp_path: Path) -> None:
    summary(tmp_path, worker_0={}, worker_1={}, worker_2={})
    bad = [tmp_path / f"worker-{index}.xplane.pb" for index in (1, 2)]
    bad[0].write_bytes(b"\x0a\xff\xff")
    bad[1].unlink()
    found = summary(tmp_path)
    assert list(found["tasks"]) == ["worker:0"]
    assert [problem.partition(":")[0] for problem in found["problems"]] == [*map(str, bad)]
