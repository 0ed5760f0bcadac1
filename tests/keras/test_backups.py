"""BackupAndRestore is killed between any two changes of its files. The next process finds a state and its epoch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from worker.bootstrap.keras_fix import backups

KILLS = [(0,), (1,), (2,), (3,), (4,), (1, 1), (2, 1), (3, 0)]


class Killed(Exception):
    """Stands for the SIGKILL."""


def files_in(directory: Path, double: bool = False) -> backups._Files:
    """The files of a callback that has the attributes of Keras's BackupAndRestore."""
    weights, epoch = str(directory / "latest.weights.h5"), str(directory / "training_metadata.json")
    return backups._Files(
        SimpleNamespace(
            double_checkpoint=double,
            _weights_path=weights,
            _training_metadata_path=epoch,
            _prev_weights_path=f"{weights}.bkp",
            _prev_training_metadata_path=f"{epoch}.bkp",
        )
    )


def test_a_kill_at_any_change_leaves_one_complete_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (double, committed, kills) in enumerate(product((False, True), (False, True), KILLS)):
        directory = tmp_path / str(number)
        directory.mkdir()
        assert settled(directory, double, committed, kills, monkeypatch), (double, committed, kills)


def settled(
    directory: Path, double: bool, committed: bool, kills: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Kill as often as `kills` says, each after so many changes; return whether one complete state is left."""
    files = files_in(directory, double)
    files.weights.write_text("weights 1")
    files.epoch.write_text("epoch 1")
    files.next_weights.write_text("weights 2")
    if committed:
        files.next_epoch.write_text("epoch 2")
    for allowed in kills:
        changes = iter(range(allowed))

        def counted(change: Any, changes: Iterator[int] = changes) -> Any:
            def counting(*args: Any, **kwargs: Any) -> Any:
                if next(changes, None) is None:
                    raise Killed
                return change(*args, **kwargs)

            return counting

        with monkeypatch.context() as context:
            context.setattr(Path, "replace", counted(Path.replace))
            context.setattr(Path, "unlink", counted(Path.unlink))
            with contextlib.suppress(Killed):
                files.settle()
    files.settle()
    number = 2 if committed else 1
    left = [files.weights.read_text(), files.epoch.read_text(), *map(str, directory.glob("next*"))]
    spare = ("weights 1", "epoch 1")
    if double and committed and (files.spare_weights.read_text(), files.spare_epoch.read_text()) != spare:
        return False
    return left == [f"weights {number}", f"epoch {number}"]


def test_an_epoch_without_weights_is_removed(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    files.epoch.write_text("epoch 4")
    files.settle()
    assert not files.epoch.exists()
