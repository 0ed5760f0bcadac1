"""The mesh's checkpoints: all processes write one together, each the parts that its devices have."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from worker.training.checkpoints.files import (
    BEGINNING,
    CheckpointError,
    Position,
    newest_readable,
    positions_found,
    remove_unfinished,
)
from worker.training.cluster import Place
from worker.training.mesh.adam import Adam
from worker.training.mesh.devices import Array, Devices
from worker.training.mesh.network import Network

STATE_FILE = "checkpoint"
WEIGHT_KEY = "weights/{}/.ATTRIBUTES/VARIABLE_VALUE"


class MeshCheckpoints:
    """The checkpoints of one training on a mesh, ckpt-<epochs done>: weights, moments, and how many epochs are done.

    Every process must call `resume` and `save` at the same point of its program, with the same directory. What was
    written on one mesh can be read on another, as the files say which part of a weight they hold.
    """

    def __init__(
        self, devices: Devices, place: Place, network: Network, adam: Adam, directory: Path, keep: int
    ) -> None:
        self._devices = devices
        self._place = place
        self._directory = directory.absolute()
        self._keep = keep
        self._epoch = dtensor.DVariable(devices.by_model(np.zeros((), np.int64), None), name="epoch")
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
        """Restore the newest checkpoint that the chief can read; how far that is, the beginning without any."""
        newest = newest_readable(self._directory) if self._place.is_chief else BEGINNING
        if newest.steps:
            raise CheckpointError(
                f"{self._directory / newest.name} was written within an epoch, and not by dtensor: "
                "give another --checkpoint-dir"
            )
        epoch = self._devices.told_by_first(newest.epochs, self._place)
        if epoch == BEGINNING.epochs:
            return BEGINNING
        path = self._path(epoch)
        if not path.with_name(f"{path.name}.index").exists():
            raise CheckpointError(
                f"{path}, which the chief resumes from, is not here: "
                "all workers need the same --checkpoint-dir"
            )
        # DTensor finds another shape only in the middle of its work, which poisons all that follows.
        different = self._difference(path)
        if different is not None:
            raise CheckpointError(
                f"{path} does not fit this model ({different}): give the options it was made with, "
                "or another --checkpoint-dir"
            )
        self._checkpoint.read(str(path)).assert_existing_objects_matched()
        return Position(epoch)

    def save(self, epochs_done: int) -> None:
        """Write ckpt-<epochs_done>, then remove what is older than the newest that are to be kept.

        TensorFlow writes beside and renames, the index last: a kill leaves the one before. None returns before the
        index is there.
        """
        self._epoch.assign(self._devices.by_model(np.array(epochs_done, np.int64), None))
        with _unwarned():
            self._checkpoint.write(str(self._path(epochs_done)))
        if self._place.is_chief:
            self._rotate(epochs_done)

    def close(self) -> None:
        """Nothing is left to do."""

    def weights(self, epochs_done: int) -> list[Array]:
        """The whole weights as that checkpoint holds them, in this process's memory: no device has to hold them."""
        reader = tf.train.load_checkpoint(str(self._path(epochs_done)))
        return [
            reader.get_tensor(WEIGHT_KEY.format(number)) for number, _ in enumerate(self._checkpoint.weights)
        ]

    def _difference(self, path: Path) -> str | None:
        """The first weight that is of another shape there than here."""
        shapes = tf.train.load_checkpoint(str(path)).get_variable_to_shape_map()
        for number, weight in enumerate(self._checkpoint.weights):
            there, here = shapes.get(WEIGHT_KEY.format(number)), weight.shape.as_list()
            if there is None:
                return "it was not written by dtensor"
            if there != here:
                return f"weight {number} is {there} there and {here} here"
        return None

    def _rotate(self, newest: int) -> None:
        older = (position for position in positions_found(self._directory) if position.epochs < newest)
        kept = [Position(newest), *older][: self._keep]
        _write_state(self._directory, kept)
        for position in set(positions_found(self._directory)) - set(kept):
            # The index first: without it there is no checkpoint, and what a kill leaves of it is removed later.
            for pattern in (f"{position.name}.index", f"{position.name}.data-*"):
                for file in self._directory.glob(pattern):
                    file.unlink(missing_ok=True)

    def _path(self, epochs_done: int) -> Path:
        """Of a checkpoint's files, without their endings."""
        return self._directory / Position(epochs_done).name


@contextlib.contextmanager
def _unwarned() -> Iterator[None]:
    """Without TensorFlow's warning that each save of DTensors traces a function anew, which is its own doing."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _write_state(directory: Path, kept: Sequence[Position]) -> None:
    """The file `checkpoint`, from which tf.train.latest_checkpoint knows the newest; `kept` begins with it.

    CheckpointManager, which writes it elsewhere, counts its saves in a variable that is no DTensor.
    """
    names = [json.dumps(position.name) for position in kept]
    lines = [f"model_checkpoint_path: {names[0]}"]
    lines += [f"all_model_checkpoint_paths: {name}" for name in reversed(names)]
    beside = directory / f".{STATE_FILE}.{os.getpid()}"
    beside.write_text("\n".join(lines) + "\n")
    beside.replace(directory / STATE_FILE)
