"""The times of each task, and the tasks that it waited for, from recordings of TensorFlow's profiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recordings import Lines, xspace

from worker.programs import summarize_profile
from worker.programs.summarize_profile import union, without

REDUCE = "StatefulPartitionedCall/CollectiveReduceV2:CollectiveReduceV2"
NEVER: Lines = {}


def recorded(directory: Path, task: str, lines: Lines, start: float = 1000, stop: float = 1100) -> None:
    name = task.replace(":", "-")
    (directory / f"{name}.xplane.pb").write_bytes(xspace(lines, start, stop))
    (directory / f"{name}.json").write_text(json.dumps({"task": task, "first": 10, "last": 19}))


def shares(directory: Path, task: str = "worker:0") -> dict[str, float]:
    its: Any = summarize_profile.summarize(directory)["tasks"]
    names = ("total", "input", "compute", "collective", "other")
    return {name: round(its[task][name] * 1000, 3) for name in names}


def test_each_moment_counts_once(tmp_path: Path) -> None:
    lines: Lines = {
        "tf_Compute/1": [("dense/MatMul:MatMul", 10, 30), ("KernelAndDeviceFunc::Run", 0, 100)],
        "tf_Compute/2": [("dense/Relu:Relu", 20, 40), ("ExecutorState::Process", 0, 100)],
        # Half of it while something was computed.
        "collective_ops/1": [(REDUCE, 30, 50)],
        "tf_data_iterator/1": [("Iterator::Root::Map", 45, 70), ("f/EagerPyFunc:EagerPyFunc", 60, 65)],
        "python": [("next_step", 0, 100), ("EagerLocalExecute: __inference_step_1", 0, 100)],
    }
    recorded(tmp_path, "worker:0", lines)
    wanted = {"total": 100.0, "input": 20.0, "compute": 30.0, "collective": 10.0, "other": 40.0}
    assert shares(tmp_path) == wanted
    assert wanted["total"] == sum(wanted.values()) - wanted["total"]


def test_what_is_outside_of_the_recording_does_not_count(tmp_path: Path) -> None:
    recorded(tmp_path, "worker:0", {"tf_Compute/1": [("a:MatMul", 90, 130)]})
    assert shares(tmp_path)["compute"] == 10.0


def test_kernels_of_a_gpu(tmp_path: Path) -> None:
    streams: Lines = {
        "Stream #13(Compute)": [("volta_sgemm", 0, 20), ("ncclDevKernel_AllReduce_Sum", 20, 50)],
        "XLA Modules": [("module", 0, 100)],
    }
    (tmp_path / "worker-0.xplane.pb").write_bytes(xspace(streams, 1000, 1100, "/device:GPU:0"))
    (tmp_path / "worker-0.json").write_text(json.dumps({"task": "worker:0", "first": 1, "last": 1}))
    assert shares(tmp_path) == {"total": 100, "input": 0, "compute": 20, "collective": 30, "other": 50}


def test_the_last_one_to_come_is_waited_for(tmp_path: Path) -> None:
    recorded(tmp_path, "worker:0", {"collective_ops/1": [(REDUCE, 10, 40), (REDUCE, 60, 70)]})
    # Its recording began 5 ms later.
    recorded(tmp_path, "worker:1", {"collective_ops/1": [(REDUCE, 25, 35), (REDUCE, 53, 65)]}, start=1005)
    recorded(tmp_path, "ps:0", NEVER)
    found: Any = summarize_profile.summarize(tmp_path)["waits"]
    assert {task: {other: round(s * 1000, 3) for other, s in to.items()} for task, to in found.items()} == {
        "worker:0": {"worker:1": 20.0},
        "worker:1": {"worker:0": 2.0},
    }


def test_collectives_that_were_cut_are_left_out(tmp_path: Path) -> None:
    recorded(tmp_path, "worker:0", {"collective_ops/1": [(REDUCE, 10, 40), (REDUCE, 60, 70)]})
    recorded(tmp_path, "worker:1", {"collective_ops/1": [(REDUCE, 25, 35)]})
    assert summarize_profile.summarize(tmp_path)["waits"] == {}


def test_damaged_recordings_are_named(tmp_path: Path) -> None:
    for task in ("worker:0", "worker:1", "worker:2"):
        recorded(tmp_path, task, {"tf_Compute/1": [("a:MatMul", 0, 10)]})
    cut = tmp_path / "worker-1.xplane.pb"
    cut.write_bytes(b"\x0a\xff\xff")
    (tmp_path / "worker-2.xplane.pb").unlink()
    found: Any = summarize_profile.summarize(tmp_path)
    assert list(found["tasks"]) == ["worker:0"]
    assert [problem.partition(":")[0] for problem in found["problems"]] == [
        str(cut),
        str(tmp_path / "worker-2.xplane.pb"),
    ]


def test_difference_of_spans() -> None:
    for spans, others, left in (
        ([(0, 10)], [], [(0, 10)]),
        ([(0, 10)], [(0, 10)], []),
        ([(0, 10)], [(2, 3), (5, 6)], [(0, 2), (3, 5), (6, 10)]),
        ([(0, 4), (6, 9)], [(3, 7)], [(0, 3), (7, 9)]),
        ([(0, 2), (3, 4)], [(1, 10)], [(0, 1)]),
    ):
        assert (without(spans, others), union([*spans, *spans])) == (left, spans)
