"""The training of a process on a mesh, from joining the mesh to its exit, with its checkpoints."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

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
from worker.training.checkpoints.methods import EpochMethod, describe_storage, resume
from worker.training.data.pipeline import BatchOrder, example_maker, keyed_batches, with_sharding
from worker.training.job import Job, Watcher
from worker.training.mesh.steps import Adam, Array, Devices, Network, Steps
from worker.training.network import build_model, build_network, keras
from worker.training.process.environment import Place
from worker.training.process.output import (
    counted,
    name_other_workers,
    print_as_task,
    without_startup_messages,
    without_warnings,
)
from worker.training.process.peers import leave
from worker.training.process.progress import ProgressChannel
from worker.training.results.evaluation import BATCH, Evaluation, print_evaluation, write_exports
from worker.training.results.watchers import EpochReport, Journal
from worker.training.weights import Weight, bytes_per_device, format_bytes, weight_table


def train_mesh(job: Job, progress: ProgressChannel) -> NoReturn:
    """Train, save, evaluate, and exit with code 0; errors are raised."""
    devices = _join(job, progress)
    job = replace(job, replicas=devices.batch)
    table = weight_table(job.dataset.image_shape, job.dataset.classes, job.options.width)
    if job.place.is_chief:
        _print_header(job, devices, table)
    network = Network(devices, table, _initial_weights(job))
    adam = Adam(devices, table, job.learning_rate)
    checkpoints = MeshCheckpoints(
        devices, job.place, network, adam, job.options.checkpoint_dir, job.options.keep
    )
    method = EpochMethod(checkpoints)
    done = resume(job, method, progress).epochs
    journal = Journal(job, done, lambda: {"learning_rate": job.learning_rate})
    steps = Steps(devices, network, adam)
    if done < job.options.epochs:
        _train(job, steps, (EpochReport(progress, job), *journal.watchers, *method.watchers), done)
    if job.place.is_chief and job.options.export != "none":
        weights = checkpoints.weights(max(done, job.options.epochs))
        write_exports(job, _make_trained_model(job, weights), weights, progress)
    progress.phase("evaluating")
    result = _evaluate(job, steps, devices.batch)
    print_evaluation(result)
    journal.evaluated(result)
    progress.phase("done", loss=result.loss, metrics={"accuracy": result.accuracy})
    leave(job.place)


def _join(job: Job, progress: ProgressChannel) -> Devices:
    """Return the mesh after every process has joined it."""
    progress.phase("waiting")
    place = job.place
    if place.workers > 1:
        print_as_task(place, f"waiting for {name_other_workers(place)} to connect")
    assert job.options.mesh is not None
    with without_startup_messages():
        devices = Devices.join(job.options.mesh, place)
    progress.phase("starting")
    return devices


def _print_header(job: Job, devices: Devices, table: tuple[Weight, ...]) -> None:
    memory = format_bytes(bytes_per_device(table, devices.model))
    print(
        f"{job.dataset.headline}\n"
        f"mesh batch={devices.batch} x model={devices.model} over "
        f"{counted(job.place.workers, 'process', 'processes')}, {job.describe_sizes()}\n"
        f"weights, gradients and Adam's moments take {memory} a device\n"
        f"{describe_storage(job.options)}"
    )


def _initial_weights(job: Job) -> list[Array]:
    """Return the same initial weights as under any other strategy, made from the seed on the host."""
    keras.utils.set_random_seed(job.options.seed)
    with tf.device("CPU:0"):
        model = build_network(job.dataset.image_shape, job.dataset.classes, job.options.width)
        if job.options.summary and job.place.is_chief:
            model.summary()
        weights: list[Array] = model.get_weights()
    return weights


def _make_trained_model(job: Job, weights: list[Array]) -> Any:
    """Return the Keras model with the whole trained weights, on the host."""
    with tf.device("CPU:0"):
        model = build_model(
            job.dataset.image_shape, job.dataset.classes, job.learning_rate, job.options.width
        )
        model.set_weights(weights)
    return model


def _train(job: Job, steps: Steps, watchers: tuple[Watcher, ...], done: int) -> None:
    """Train from epoch `done` on. Every process takes the same batches, in the same order as under other strategies."""
    order = BatchOrder(job.global_batch, job.options.seed, first_step=done * job.steps)
    examples = keyed_batches(job.dataset, order).map(example_maker(job.dataset))
    batches = iter(with_sharding(examples, "off"))
    for epoch in range(done + 1, job.options.epochs + 1):
        for watcher in watchers:
            watcher.epoch_began(epoch)
        steps.reset_means()
        for step in range(1, job.steps + 1):
            images, labels = next(batches)
            steps.train(images.numpy(), labels.numpy())
            for watcher in watchers:
                watcher.step_ended(step, steps.means)
        values = steps.means()
        for watcher in watchers:
            watcher.epoch_ended(epoch, values)


def _evaluate(job: Job, steps: Steps, parts: int) -> Evaluation:
    """Return loss and accuracy on the held-out part; the last batch is padded with examples of weight 0."""
    images, labels = job.dataset.test_images, job.dataset.test_labels
    size = -(-min(BATCH, len(images)) // parts) * parts
    loss = hits = 0.0
    for start in range(0, len(images), size):
        chosen = np.arange(start, start + size)
        weights = (chosen < len(images)).astype(np.float32)
        chosen = np.minimum(chosen, len(images) - 1)
        one_loss, one_hits = steps.test(images[chosen], labels[chosen], weights)
        loss += one_loss
        hits += one_hits
    return Evaluation(loss / len(images), hits / len(images), len(images))


# -- checkpoints: all processes write each one together, with the parts on their devices

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
            raise CheckpointError.missing(path)
        # DTensor would detect another shape in the middle of the restore, and cannot be used after that.
        mismatch = self._find_mismatch(path)
        if mismatch is not None:
            raise CheckpointError.unfit(path, mismatch)
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
