"""A directory with a training of another --checkpoint method is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.training.options.context import directory_problem
from worker.training.options.parser import parse_options


def checkpoints_in(directory: Path, *names: str) -> None:
    for name in names:
        (directory / f"{name}.index").touch()


def backup_in(directory: Path) -> Path:
    task = directory / "backup" / "worker-0"
    task.mkdir(parents=True)
    (task / "latest.weights.h5").touch()
    return task


@pytest.mark.parametrize("method", ["manager", "backup", "preemption"])
def test_new_directory_suits_every_method(method: str, tmp_path: Path) -> None:
    assert directory_problem(method, tmp_path / "not there") is None
    (tmp_path / "backup" / "worker-0").mkdir(parents=True)
    (tmp_path / "history.json").touch()
    (tmp_path / "ckpt-2.data-00000-of-00001").touch()
    assert directory_problem(method, tmp_path) is None


def test_backup_does_not_start_again_beside_checkpoints(tmp_path: Path) -> None:
    checkpoints_in(tmp_path, "ckpt-9-3", "ckpt-10", "ckpt-8")
    said = directory_problem("backup", tmp_path)
    assert said is not None
    assert said.startswith(f"{tmp_path}/ckpt-10 is of a training with --checkpoint manager or preemption")
    assert "take --checkpoint manager, or another --checkpoint-dir" in said
    for method in ("manager", "preemption"):
        assert directory_problem(method, tmp_path) is None


@pytest.mark.parametrize("method", ["manager", "preemption"])
def test_checkpoints_do_not_start_again_beside_a_backup(method: str, tmp_path: Path) -> None:
    task = backup_in(tmp_path)
    said = directory_problem(method, tmp_path)
    assert said is not None
    assert said.startswith(f"{task} is of a training with --checkpoint backup, and {method} cannot")
    assert "take --checkpoint backup, or another --checkpoint-dir" in said
    assert directory_problem("backup", tmp_path) is None


def test_method_resumes_from_its_own_files(tmp_path: Path) -> None:
    backup_in(tmp_path)
    checkpoints_in(tmp_path, "ckpt-1")
    for method in ("manager", "backup", "preemption"):
        assert directory_problem(method, tmp_path) is None


def test_parser_refuses_a_directory_of_another_method(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints_in(tmp_path, "ckpt-1")
    assert parse_options(["--checkpoint-dir", str(tmp_path)]).checkpoint == "manager"
    with pytest.raises(SystemExit) as ended:
        parse_options(["--checkpoint-dir", str(tmp_path), "--checkpoint", "backup"])
    assert ended.value.code == 2
    assert f"{tmp_path}/ckpt-1 is of a training with --checkpoint" in capsys.readouterr().err
