"""Checkpoint files by tf.train.CheckpointManager: writes, finds and restores them. Only the chief's are kept."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from worker.training.process.environment import Place, UsageError
from worker.training.process.peers import broadcast_from_chief
from worker.training.results.evaluation import MODEL_FILE

PREFIX = "ckpt"
EPOCH_KEY = "epoch/.ATTRIBUTES/VARIABLE_VALUE"
# ckpt-2: after two epochs; ckpt-2-13: after two epochs and 13 steps.
_INDEX = re.compile(rf"{PREFIX}-(\d{{1,9}})(?:-(\d{{1,9}}))?\.index\Z", re.ASCII)
# TensorFlow's name for the operation in an error message.
_OPERATION = re.compile(r"\{\{[^{}]*\}\} *")
# Characters of an error message that are shown.
_LONGEST = 240
# Epochs and steps are broadcast as one number, epochs * 2**24 + steps, which a float64 holds exactly.
_STEPS_BELOW = 2**24


class CheckpointError(UsageError):
    """The checkpoints cannot be used."""

    @classmethod
    def missing(cls, path: Path) -> CheckpointError:
        return cls(
            f"{path}, which the chief resumes from, is not here: all workers need the same --checkpoint-dir"
        )

    @classmethod
    def unfit(cls, path: Path, why: str) -> CheckpointError:
        return cls(
            f"{path} does not fit this model ({why}): give the options it was made with, or another --checkpoint-dir"
        )


@dataclass(frozen=True, order=True)
class Position:
    """Whole epochs that are done, and steps of the next one."""

    epochs: int = 0
    steps: int = 0

    @property
    def name(self) -> str:
        return f"{PREFIX}-{self.epochs}-{self.steps}" if self.steps else f"{PREFIX}-{self.epochs}"


START = Position()


class Checkpoints:
    """The checkpoints of one training, ckpt-<epochs done>: model, optimizer and the number of epochs.

    Every worker must call `resume` and `save` at the same point of its program, because reading a value that is summed
    over the workers needs all of them. Only the chief writes into `directory`; the others write into scratch.
    """

    def __init__(self, model: Any, place: Place, strategy: Any, directory: Path, keep: int) -> None:
        self._place = place
        self._strategy = strategy
        self._directory = directory.absolute()
        self._epoch = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, epoch=self._epoch)
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._own = self._directory
        self._keep = keep if place.is_chief else 1
        if place.is_chief:
            self._own.mkdir(parents=True, exist_ok=True)
            remove_unfinished(self._own)
        else:
            self._scratch = tempfile.TemporaryDirectory(
                prefix="checkpoints-", dir=os.environ.get("ORCH_SCRATCH_DIR"), ignore_cleanup_errors=True
            )
            self._own = Path(self._scratch.name)
        self._manager = self._make_manager(PREFIX)

    def resume(self) -> Position:
        """Restore the newest checkpoint that the chief can read and return its position, the start without any.

        The chief decides, and the others read the same files. No file is written or deleted before every worker has
        read: the next save comes after a training step, in which all take part.
        """
        newest = find_newest_readable(self._directory) if self._place.is_chief else START
        number = broadcast_from_chief(
            self._strategy, self._place, newest.epochs * _STEPS_BELOW + newest.steps
        )
        position = Position(*divmod(number, _STEPS_BELOW))
        if position == START:
            return position
        path = self._directory / position.name
        try:
            self._checkpoint.restore(str(path)).assert_existing_objects_matched()
        except tf.errors.NotFoundError as error:
            raise CheckpointError.missing(path) from error
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            raise CheckpointError.unfit(path, first_line(error)) from error
        return position

    def save(self, epochs_done: int) -> None:
        """Write ckpt-<epochs_done>. TensorFlow renames it into place, so a kill leaves the previous one."""
        self._epoch.assign(epochs_done)
        self._manager.save(checkpoint_number=epochs_done)

    def save_within_epoch(self, position: Position) -> Path:
        """Write ckpt-<epochs>-<steps> before this process exits; return its path without endings.

        At the end of an epoch nothing is written, because `save` has been called.
        """
        if position.steps:
            self._epoch.assign(position.epochs)
            self._make_manager(f"{PREFIX}-{position.epochs}").save(checkpoint_number=position.steps)
        return self._directory / position.name

    def close(self) -> None:
        """Remove this worker's scratch directory."""
        if self._scratch is not None:
            self._scratch.cleanup()

    def _make_manager(self, name: str) -> Any:
        return tf.train.CheckpointManager(
            self._checkpoint, str(self._own), max_to_keep=self._keep, checkpoint_name=name
        )


def find_positions(directory: Path) -> list[Position]:
    """Return the positions of all checkpoints in `directory`, newest first."""
    names = (_INDEX.match(index.name) for index in directory.glob(f"{PREFIX}-*.index"))
    return sorted((Position(int(name[1]), int(name[2] or 0)) for name in names if name), reverse=True)


def find_newest_readable(directory: Path) -> Position:
    """Return the newest checkpoint that can be read to its end, or the start if `directory` has no checkpoint.

    CheckpointError if there are checkpoints but none can be read.
    """
    found = find_positions(directory)
    for position in found:
        path = directory / position.name
        try:
            _verify(path, position.epochs)
        except (tf.errors.OpError, ValueError, LookupError, RuntimeError) as error:
            print(f"checkpoint {path} cannot be read ({first_line(error)}): trying the one before it")
        else:
            return position
    if found:
        raise CheckpointError(
            f"none of the checkpoints in {directory} can be read ({len(found)} found): move them away to start again"
        )
    return START


def _verify(path: Path, epochs_done: int) -> None:
    """Read all of a checkpoint, which verifies its checksums; raise an error if its epoch is not `epochs_done`."""
    reader = tf.train.load_checkpoint(str(path))
    for name in reader.get_variable_to_shape_map():
        reader.get_tensor(name)
    if int(reader.get_tensor(EPOCH_KEY)) != epochs_done:
        raise ValueError("it holds another epoch")


def remove_unfinished(directory: Path) -> None:
    """Remove what a killed chief was writing or deleting. A checkpoint is complete when its index exists."""
    for unfinished in directory.glob(f"{PREFIX}-*_temp"):
        shutil.rmtree(unfinished, ignore_errors=True)
    model = Path(MODEL_FILE)
    for pattern in (f".{PREFIX}-*", f".*{model.stem}*{model.suffix}", ".*.export"):
        for unfinished in directory.glob(pattern):
            if unfinished.is_dir():
                shutil.rmtree(unfinished, ignore_errors=True)
            else:
                unfinished.unlink(missing_ok=True)
    for data in directory.glob(f"{PREFIX}-*.data-*"):
        if not data.with_name(f"{data.name.partition('.data-')[0]}.index").exists():
            data.unlink(missing_ok=True)


def first_line(error: BaseException) -> str:
    """Return the first line of the message, shortened, without TensorFlow's name for the operation."""
    lines = _OPERATION.sub("", str(error).strip()).splitlines() or [type(error).__name__]
    return lines[0] if len(lines[0]) <= _LONGEST else f"{lines[0][:_LONGEST]} ..."
