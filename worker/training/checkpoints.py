"""Checkpoints: writing them (the chief's alone are kept), resuming from them, and the final model file."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf

from worker.training.agreement import told_by_chief
from worker.training.cluster import Place

PREFIX = "ckpt"
MODEL_FILE = "model.keras"
EPOCH_KEY = "epoch/.ATTRIBUTES/VARIABLE_VALUE"
NOTHING_TO_RESUME = 0


class CheckpointError(RuntimeError):
    """The checkpoints cannot be used; the text says which and what to do."""


class Checkpoints:
    """The checkpoints of one training, ckpt-<epochs done>: model, optimizer and how many epochs are done.

    Every worker has one and must call `resume` and `save` at the same point of its program, as values that
    are summed over the workers when they are read would wait for all of them. Only the chief writes into
    `directory`.
    """

    def __init__(self, model: Any, place: Place, strategy: Any, directory: Path, keep: int) -> None:
        self._place = place
        self._strategy = strategy
        self._directory = directory.absolute()
        self._epoch = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, epoch=self._epoch)
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        own = self._directory
        if place.is_chief:
            own.mkdir(parents=True, exist_ok=True)
            _remove_unfinished(own)
        else:
            self._scratch = tempfile.TemporaryDirectory(
                prefix="checkpoints-", dir=os.environ.get("ORCH_SCRATCH_DIR"), ignore_cleanup_errors=True
            )
            own = Path(self._scratch.name)
        self._manager = tf.train.CheckpointManager(
            self._checkpoint, str(own), max_to_keep=keep if place.is_chief else 1, checkpoint_name=PREFIX
        )

    def resume(self) -> int:
        """Restore the newest checkpoint that the chief can read; how many epochs are done, 0 without any.

        The chief alone decides and tells the others, who read the same files. None is written or deleted
        before every worker has read: the next save comes after a training step, in which all take part.
        """
        newest = self._newest() if self._place.is_chief else NOTHING_TO_RESUME
        epoch = told_by_chief(self._strategy, self._place, newest)
        if epoch == NOTHING_TO_RESUME:
            return 0
        path = self._directory / f"{PREFIX}-{epoch}"
        try:
            self._checkpoint.restore(str(path)).assert_existing_objects_matched()
        except tf.errors.NotFoundError as error:
            raise CheckpointError(
                f"{path}, which the chief resumes from, is not here: "
                "all workers need the same --checkpoint-dir"
            ) from error
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            raise CheckpointError(
                f"{path} does not fit this model ({_first_line(error)}): give the options it was made with, "
                "or another --checkpoint-dir"
            ) from error
        return epoch

    def save(self, epochs_done: int) -> None:
        """Write ckpt-<epochs_done>; TensorFlow writes beside and renames, so a kill leaves the one before."""
        self._epoch.assign(epochs_done)
        self._manager.save(checkpoint_number=epochs_done)

    def close(self) -> None:
        """Remove this worker's scratch, if it has any."""
        if self._scratch is not None:
            self._scratch.cleanup()

    def _newest(self) -> int:
        found = sorted(
            (
                int(number)
                for index in self._directory.glob(f"{PREFIX}-*.index")
                if (number := _number(index)).isdecimal()
            ),
            reverse=True,
        )
        for epoch in found:
            path = self._directory / f"{PREFIX}-{epoch}"
            try:
                _read_whole(path, epoch)
            except (tf.errors.OpError, ValueError, KeyError, RuntimeError) as error:
                print(f"checkpoint {path} cannot be read ({_first_line(error)}): trying the one before it")
            else:
                return epoch
        if found:
            raise CheckpointError(
                f"none of the {len(found)} checkpoints in {self._directory} can be read: "
                "move them away to start afresh"
            )
        return NOTHING_TO_RESUME


def save_model(model: Any, directory: Path) -> Path:
    """Write the whole model as model.keras, at once or not at all; returns its path. The chief's to call."""
    path = directory / MODEL_FILE
    beside = directory / f".{os.getpid()}.{MODEL_FILE}"
    model.save(beside)
    beside.replace(path)
    return path


def _read_whole(path: Path, epochs_done: int) -> None:
    """Read all of a checkpoint, as its checksums show a tear; an error when it is not what its name says."""
    reader = tf.train.load_checkpoint(str(path))
    for name in reader.get_variable_to_shape_map():
        reader.get_tensor(name)
    if int(reader.get_tensor(EPOCH_KEY)) != epochs_done:
        raise ValueError("it is of another epoch")


def _remove_unfinished(directory: Path) -> None:
    """What an earlier chief was writing when it was killed."""
    for unfinished in directory.glob(f"{PREFIX}-*_temp"):
        shutil.rmtree(unfinished, ignore_errors=True)
    for unfinished in directory.glob(f".*.{MODEL_FILE}"):
        unfinished.unlink(missing_ok=True)


def _number(index: Path) -> str:
    return index.name.removeprefix(f"{PREFIX}-").removesuffix(".index")


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
