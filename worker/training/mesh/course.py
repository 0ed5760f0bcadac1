"""The training of a process on a mesh, from joining the mesh to its exit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from worker.training.checkpoints.methods import EpochMethod, describe_storage, resume
from worker.training.data.pipeline import BatchOrder, example_maker, keyed_batches, with_sharding
from worker.training.job import Job, Watcher
from worker.training.mesh.checkpoints import MeshCheckpoints
from worker.training.mesh.steps import Adam, Array, Devices, Network, Steps
from worker.training.network import build_model, build_network, keras
from worker.training.process.output import (
    counted,
    name_other_workers,
    print_as_task,
    without_startup_messages,
)
from worker.training.process.peers import leave
from worker.training.process.progress import ProgressChannel
from worker.training.results.evaluation import BATCH, Evaluation, print_evaluation
from worker.training.results.export import write_exports
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
