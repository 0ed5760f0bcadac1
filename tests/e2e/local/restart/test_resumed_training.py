"""A training that is killed and restarted ends with the same weights and losses as an undisturbed one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from orch_command import Orch
from trained_state import ABSOLUTE, RELATIVE, assert_same_training
from waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPTS = Path(__file__).parent
# Seconds; a busy machine may take several times as long as an idle one.
LONGEST_S = 600.0


def train(orch: Orch, where: str, options: tuple[str, ...], command: tuple[str, ...]) -> dict[str, Any]:
    """Run two workers with their own checkpoint directory and return the result."""
    words = ("up", "-n", "2", "--name", where, "--checkpoint-dir", where, *options, "--", *command)
    done = orch(*words, timeout_s=LONGEST_S)
    assert done.code == 0, done.out + done.err
    result: dict[str, Any] = orch.result(orch.run_dirs()[-1])
    return result


def train_script(
    orch: Orch, script: str, kind: str, victim: str
) -> tuple[dict[str, Any], list[Any], list[Any]]:
    """Train undisturbed, then with a victim. Return the first of its two attempts, and the arrays that the workers of
    both runs saved at the end."""
    shutil.copy(SCRIPTS / script, orch.directory)
    train(orch, "whole", (), (script, kind, "nobody"))
    result = train(orch, "killed", ("--on-failure", "restart"), (script, kind, victim))
    whole, killed = (
        [dict(np.load(orch.directory / where / f"end-{rank}.npz")) for rank in range(2)]
        for where in ("whole", "killed")
    )
    return resumed(result), whole, killed


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_allclose(value, other[name], rtol=RELATIVE, atol=ABSOLUTE, err_msg=name)


def resumed(result: dict[str, Any]) -> dict[str, Any]:
    """The first of two attempts."""
    assert (result["outcome"], result["attempts"]) == ("succeeded", 2)
    (first,) = result["history"]
    assert isinstance(first, dict)
    return first


@pytest.mark.parametrize("fault", ["kill worker:1 at step 20", "kill chief at step 20"])
def test_killed_example_ends_like_an_undisturbed_one(orch: Orch, fault: str) -> None:
    steps = 8
    program = ("--epochs", "5", "--steps-per-epoch", str(steps))
    train(orch, "whole", (), program)
    result = train(orch, "killed", ("--on-failure", "restart", "--chaos", fault), program)
    first = resumed(result)
    assert first["cause"]["task"] == ("worker:1" if "worker:1" in fault else "worker:0")
    # The kill comes in the third epoch or a little later, because the training does not wait for it.
    assert first["position"] >= 20
    assert first["resumed_at"] % steps == 0
    assert first["steps_lost"] == first["position"] - first["resumed_at"] <= steps
    (report,) = result["faults"]
    assert report["recovery_s"] > 0
    for epoch in range(3, 6):  # three are kept
        assert_same_training(orch.directory / f"killed/ckpt-{epoch}", orch.directory / f"whole/ckpt-{epoch}")
    whole, killed = (
        orch("logs", "--no-prefix", "--grep", "^held-out", name).lines for name in ("whole", "killed")
    )
    assert len(whole) == 2 and {*killed} == {*whole}


@pytest.mark.parametrize(
    ("directories", "victim", "resumed_epochs"),
    [
        *(("shared", "training", 2), ("shared", "saving", 1)),
        *(("own", "training", 2), ("own", "late", 2), ("own", "chief-late", 1)),
    ],
)
def test_killed_fit_with_backups_ends_like_an_undisturbed_one(
    orch: Orch, directories: str, victim: str, resumed_epochs: int
) -> None:
    first, whole, killed = train_script(orch, "fit_script.py", directories, victim)
    assert first["resumed_at"] == 6 * resumed_epochs
    # Quick steps are not all reported.
    done = {"training": 16, "saving": 12, "late": 12, "chief-late": 12}[victim]
    assert first["position"] == done or (not first["exact"] and first["position"] < done)
    assert first["steps_lost"] == max(0, first["position"] - first["resumed_at"])
    for rank in range(2):
        assert killed[rank]["epochs"].tolist() == [*range(resumed_epochs, 5)]
        later = {
            name: value[resumed_epochs:] if name in ("epochs", "losses", "validated") else value
            for name, value in whole[rank].items()
        }
        assert_equal(killed[rank], later)
    assert not [*(orch.directory / "killed").glob("**/.*")], "no temporary files are left"


@pytest.mark.parametrize(("how", "start"), [("manager", 10), ("preemption", None)])
def test_killed_custom_loop_ends_like_an_undisturbed_one(orch: Orch, how: str, start: int | None) -> None:
    first, whole, killed = train_script(orch, "loop_script.py", how, "training")
    assert first["exit_code"] == (42 if how == "preemption" else 137)
    starts = {int(end.pop("start")) for end in killed}
    assert len(starts) == 1
    assert start is None or starts == {start}
    assert starts == {first["resumed_at"]}
    # A worker that gets SIGTERM finishes its step and saves: nothing is lost.
    assert first["steps_lost"] == (0 if how == "preemption" else 2)
    for rank in range(2):
        whole[rank].pop("start")
        assert_equal(killed[rank], whole[rank])


def test_training_is_saved_after_a_notice_and_continues(orch: Orch) -> None:
    shutil.copy(SCRIPTS / "loop_script.py", orch.directory)
    words = ("up", "-n", "2", "--checkpoint-dir", "kept", "--", "loop_script.py", "preemption", "waits")
    command = orch.start(*words)
    until(lambda: orch.run_dirs() and any(each["step"] for each in reported(orch)), LONGEST_S)
    assert orch("notice", "--in", "2m").code == 0
    ended = command.finish(LONGEST_S)
    assert ended.code == 42, ended.out + ended.err
    assert "2 of 2 tasks said that the state is saved" in ended.err
    (orch.directory / "kept/go").touch()
    again = orch(*words, timeout_s=LONGEST_S)
    assert again.code == 0, again.out + again.err
    assert max(each["start_step"] or 0 for each in reported(orch)) > 0


def reported(orch: Orch) -> list[dict[str, Any]]:
    """The reported progress of the newest run."""
    return [event["progress"] for event in orch.events("task_progressed", orch.run_dirs()[-1])]
