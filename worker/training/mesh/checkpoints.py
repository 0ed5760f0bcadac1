"""Checkpoints of a mesh: all processes write each one together, with the parts on their devices."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from worker.training.checkpoints.files import (
    START,
    CheckpointError,
    Position,
    find_newest_readable,
    find_positions,
    remove_unfinished,
)
from worker.training.mesh.steps import Adam, Array, Devices, Network
from worker.training.process.environment import Place
from worker.training.process.output import without_warnings

STATE_FILE = "checkpoint"
WEIGHT_KEY = "weights/{}/.ATTRIBUTES/VARIABLE_VALUE"


class MeshCheckpoints:
    """The checkpoints of one training on a mesh, ckpt-<epochs done>: weights, moments and the number of epochs.

    Every process must call `resume` and `save` at the same point of its program, with the same directory. A checkpoint
    of one mesh can be read on another, because the files say which part of a weight they hold.
    """

    def __init__(
        self, devices: Devices, place: Place, network: Network, adam: Adam, directory: Path, keep: int
    ) -> None:
        self._devices = devices
        self._place = place
        self._directory = directory.absolute()
        self._keep = keep
        self._epoch = devices.variable(np.zeros((), np.int64), None, "epoch")
        self._checkpoint = tf.train.Checkpoint(
            weights=network.weights,
            first_moments=adam.first,
            second_moments=adam.second,
            steps=adam.steps,
            epoch=self._epoch,
        )
        if place.is_chief:
            self._directory.mkdir(parents=True, exist_ok=True)
            remove_unfinished(self._directory)
            for unfinished in self._directory.glob(f".{STATE_FILE}.[0-9]*"):
                unfinished.unlink(missing_ok=True)

    def resume(self) -> Position:
        """Restore the newest checkpoint that the chief can read and return its position, the start without any."""
        newest = find_newest_readable(self._directory) if self._place.is_chief else START
        if newest.steps:
            raise CheckpointError(
                f"{self._directory / newest.name} was written within an epoch, and not by dtensor: "
                "give another --checkpoint-dir"
            )
        epoch = self._devices.broadcast_from_chief(newest.epochs, self._place)
        if epoch == START.epochs:
            return START
        path = self._path(epoch)
        if not path.with_name(f"{path.name}.index").exists():
            raise CheckpointError(
                f"{path}, which the chief resumes from, is not here: "
                "all workers need the same --checkpoint-dir"
            )
        # DTensor would detect another shape in the middle of the restore, and cannot be used after that.
        mismatch = self._find_mismatch(path)
        if mismatch is not None:
            raise CheckpointError(
                f"{path} does not fit this model ({mismatch}): give the options it was made with, "
                "or another --checkpoint-dir"
            )
        self._checkpoint.read(str(path)).assert_existing_objects_matched()
        return Position(epoch)

    def save(self, epochs_done: int) -> None:
        """Write ckpt-<epochs_done>, then remove the oldest ones.

        TensorFlow renames the files into place, the index last, so a kill leaves the previous checkpoint. No process
        returns before the index exists.
        """
        self._epoch.assign(self._devices.split_by_model(np.array(epochs_done, np.int64), None))
        # TensorFlow warns that it retraces its own function at each save of DTensors.
        with without_warnings(tf.get_logger()):
            self._checkpoint.write(str(self._path(epochs_done)))
        if self._place.is_chief:
            self._rotate(epochs_done)

    def close(self) -> None:
        """Do nothing, because no scratch directory is used."""

    def weights(self, epochs_done: int) -> list[Array]:
        """Return the whole weights of that checkpoint in host memory, because no device may have room for them."""
        reader = tf.train.load_checkpoint(str(self._path(epochs_done)))
        return [
            reader.get_tensor(WEIGHT_KEY.format(number)) for number, _ in enumerate(self._checkpoint.weights)
        ]

    def _find_mismatch(self, path: Path) -> str | None:
        """Return the first weight whose shape in the checkpoint is not the one here."""
        shapes = tf.train.load_checkpoint(str(path)).get_variable_to_shape_map()
        for number, weight in enumerate(self._checkpoint.weights):
            there, here = shapes.get(WEIGHT_KEY.format(number)), weight.shape.as_list()
            if there is None:
                return "it was not written by dtensor"
            if there != here:
                return f"weight {number} is {there} there and {here} here"
        return None

    def _rotate(self, newest: int) -> None:
        older = (position for position in find_positions(self._directory) if position.epochs < newest)
        kept = [Position(newest), *older][: self._keep]
        _write_state(self._directory, kept)
        for position in set(find_positions(self._directory)) - set(kept):
            # The index first: after a kill the rest, which is no longer a checkpoint, is removed by the next run.
            for pattern in (f"{position.name}.index", f"{position.name}.data-*"):
                for file in self._directory.glob(pattern):
                    file.unlink(missing_ok=True)

    def _path(self, epochs_done: int) -> Path:
        """Return the path of a checkpoint's files, without their endings."""
        return self._directory / Position(epochs_done).name


def _write_state(directory: Path, kept: Sequence[Position]) -> None:
    """Write the file `checkpoint`, which tf.train.latest_checkpoint reads; `kept` starts with the newest.

    CheckpointManager writes it in other trainings, but counts its saves in a variable that is not a DTensor.
    """
    names = [json.dumps(position.name) for position in kept]
    lines = [f"model_checkpoint_path: {names[0]}"]
    lines += [f"all_model_checkpoint_paths: {name}" for name in reversed(names)]
    beside = directory / f".{STATE_FILE}.{os.getpid()}"
    beside.write_text("\n".join(lines) + "\n")
    beside.replace(directory / STATE_FILE)
