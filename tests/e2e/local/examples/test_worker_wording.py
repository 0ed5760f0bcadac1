"""The wording of the built-in program: task names, counts, and hints for misspelt words."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from cluster import ROOT

from worker.training.process.environment import Place
from worker.training.process.output import counted, name_other_workers, print_as_task

THREE = ("a:1", "a:2", "a:3")


def test_task_prints_its_name_unless_orch_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place("worker:1", 1, THREE)
    monkeypatch.delenv("ORCH_RUN_ID", raising=False)
    print_as_task(place, f"waiting for {name_other_workers(place)}")
    monkeypatch.setenv("ORCH_RUN_ID", "run-1")
    print_as_task(place, f"waiting for {name_other_workers(Place('worker:1', 1, THREE[:2]))}")
    assert capsys.readouterr().out.splitlines() == [
        "worker:1: waiting for the 2 other workers",
        "waiting for the other worker",
    ]


def test_counts_in_words() -> None:
    assert [counted(number, "epoch") for number in (0, 1, 2)] == ["0 epochs", "1 epoch", "2 epochs"]
    assert counted(2, "class", "classes") == "2 classes"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--loop", "custm"], "argument --loop: 'custm' is not known; did you mean \"custom\"?"),
        (["--loop", "zzz"], "argument --loop: 'zzz' is not known; choose from fit, custom"),
        (["--dataset", "mnits"], "argument --dataset: 'mnits' is not a data set; did you mean \"mnist\"?"),
        (["--auto_shard=file"], "'--auto_shard=file' is not known; did you mean \"--auto-shard\"?"),
    ],
)
def test_misspelt_word_is_answered_with_the_most_similar(arguments: list[str], says: str) -> None:
    asked = subprocess.run(
        [sys.executable, "-P", "-m", "worker.training.options.parser", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 2
    assert asked.stderr.rstrip().endswith(says)
