"""Batch jobs that Slurm starts again: a new run continues from the checkpoints of the run before."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batch_run import BatchRun
from orch_command import ORCH, read_document, read_events
from testbed import Testbed
from trained_state import ABSOLUTE, RELATIVE

_SHARDED = Path(__file__).parent / "sharded_script.py"
_NODES_OFF = {"first node off": "n1", "last node off": "n3"}
# A step that the script saves before its steps become slow.
_SAVED = 10


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["preemption", "notice", "signal", "time limit", "kill", "detached"])
def test_job_that_is_started_again_continues_from_the_checkpoints(batch: BatchRun, how: str) -> None:
    command = ("--name", "test", "--notice", "30s", "--", sys.executable, "resumes.py")
    if how == "detached":
        batch.detach(*command)
    else:
        batch.submit(*command, limit="1" if how == "time limit" else "0")
    batch.until_trains(1)
    first = batch.directory
    batch.disturb("preemption" if how == "detached" else how)
    batch.start_again()
    batch.until_trains(2)
    second = batch.directory
    batch.end()
    result = batch.result()
    assert (result["outcome"], result["attempts"]) == ("succeeded", 1), batch.text
    record = read_document(second / "run.json")
    assert (record["name"], record["continues"]) == ("test", first.name)
    assert record["checkpoint_dir"] == read_document(first / "run.json")["checkpoint_dir"]
    earlier = read_document(first / "result.json")
    assert earlier["cause"]["text"].endswith(f"; Slurm has started the job again: {second.name}")
    starts = [
        int((second / "logs" / f"worker-{index}.log").read_text().splitlines()[0].split()[-1])
        for index in range(3)
    ]
    if how == "kill":
        assert earlier["outcome"] == "lost"
    else:
        assert all(starts)
        assert (earlier["outcome"], earlier["exit_code"]) == ("stopped", 42)
        assert earlier["cause"]["kind"] == "notice"
        # Slurm sends SIGTERM to `orch up`, too.
        assert not read_events(first, "stop_requested")
        assert "3 of 3 tasks said that the state is saved" in earlier["cause"]["text"]
    if how in ("notice", "signal", "time limit"):  # a preemption may kill `orch up` before it says so
        assert "Slurm starts its job again" in batch.text


@pytest.fixture(scope="module")
def undisturbed(all_machines: Testbed) -> Iterator[dict[str, Any]]:
    """The final losses and weights of three workers on one machine."""
    directory = all_machines.shared / "undisturbed"
    directory.mkdir()
    shutil.copy(_SHARDED, directory)
    places = ("--checkpoint-dir", str(directory), "--log-dir", str(directory / "runs"))
    train = ("--workers", "3", "--threads", "1", "--", _SHARDED.name, "manager")
    all_machines["n0"].run(
        *(str(ORCH), "up", "--as-root-anyway", *places, *train), cwd=directory, timeout_s=400
    )
    yield _end(directory, 0)
    shutil.rmtree(directory)


def _end(directory: Path, rank: int) -> dict[str, Any]:
    return dict(np.load(directory / f"end-{rank}.npz"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("how", "saves", "starts"),
    [
        ("preemption", "preemption", 2),
        ("notice", "preemption", 2),
        ("time limit", "preemption", 2),
        ("time limit", "manager", 2),
        ("kill", "manager", 2),
        ("first node off", "manager", 2),
        ("last node off", "manager", 2),
        ("agent killed", "manager", 2),
        ("srun killed", "manager", 2),
        ("controller restarted", "manager", 1),
    ],
)
def test_disturbed_training_has_the_losses_and_weights_of_an_undisturbed_one(
    batch: BatchRun, undisturbed: dict[str, Any], how: str, saves: str, starts: int
) -> None:
    project = batch.project
    shutil.copy(_SHARDED, project)
    on_failure = "restart" if how in ("agent killed", "srun killed") else "abort"
    options = ("--notice", "30s", "--threads", "1", "--on-failure", on_failure)
    batch.submit(*options, "--", _SHARDED.name, saves, "slowly", limit="3" if how == "time limit" else "0")
    batch.until_step(_SAVED + 2)
    if node := _NODES_OFF.get(how):
        batch.slurm.turn_off(node)
        batch.until_pending()  # when Slurm has noticed
        batch.slurm.turn_on(node)
    else:
        batch.disturb(how)
    if how in ("preemption", "notice", "time limit", "kill", *_NODES_OFF):
        batch.start_again()
    # An attempt must last until the disturbance takes effect. The one after it is not slow in the same run.
    if how not in ("agent killed", "srun killed"):
        (project / "kept/go").touch()
    result = batch.result()
    assert (result["outcome"], result["attempts"] + len(batch.runs) - 1) == ("succeeded", starts), batch.text
    ends = [_end(project / "kept", rank) for rank in range(3)]
    (start,) = {int(end["start"]) for end in ends}
    assert start >= _SAVED if starts == 2 else start == 0
    for earlier in result["history"]:
        assert earlier["resumed_at"] == start
        # A worker that gets SIGTERM finishes its step and saves.
        assert saves == "manager" or earlier["steps_lost"] == 0
    if how in _NODES_OFF:
        earlier = read_document(batch.runs[0] / "result.json")
        assert (earlier["cause"]["host"] == "n3") is (how == "last node off")
    for end in ends:
        for name in ("losses", "weights", "momentum"):
            np.testing.assert_allclose(
                end[name], undisturbed[name], rtol=RELATIVE, atol=ABSOLUTE, err_msg=name
            )
