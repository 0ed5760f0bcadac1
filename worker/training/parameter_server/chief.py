"""The chief: makes the model on the parameter servers, leads the training, saves, exports and evaluates."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

import tensorflow as tf

from worker.training.checkpoints.files import START, CheckpointError, Position
from worker.training.checkpoints.methods import describe_storage, open_method, resume
from worker.training.job import Job, Training
from worker.training.parameter_server.loops import evaluate, fit, train_scheduled
from worker.training.parameter_server.model import (
    copy_to_host,
    count_by_server,
    find_shape_mismatch,
    make_model,
    make_partitioner,
)
from worker.training.process.ending import exit_now
from worker.training.process.environment import Place
from worker.training.process.output import counted, print_as_task, without_startup_messages
from worker.training.process.progress import ProgressChannel
from worker.training.results.evaluation import print_evaluation
from worker.training.results.export import export
from worker.training.results.watchers import EpochReport, Journal, read_learning_rate


def train_with_servers(job: Job, progress: ProgressChannel) -> NoReturn:
    """Train, save, evaluate, and exit with code 0; errors are raised.

    The examples are in memory. Workers and parameter servers keep serving until they are stopped.
    """
    # TensorFlow retraces its own function at each save by several tasks, and warns about it.
    logging.getLogger("tensorflow").addFilter(lambda record: "tf_function_save" not in record.getMessage())
    strategy = _connect(job, progress)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    workers = job.place.workers - 1
    # A step is one worker's, and only the chief saves and records: from here on the job is that of a single process.
    job = replace(job, place=Place(job.place.task))
    model = make_model(job, strategy, workers)
    _print_header(job, workers, count_by_server(model))
    method = open_method(job, model, tf.distribute.get_strategy())
    position = resume(job, method, progress)
    _check_shapes(job, model, position)
    journal = Journal(job, position.epochs, lambda: read_learning_rate(model.optimizer))
    if position.epochs < job.options.epochs:
        watchers = (EpochReport(progress, job), *journal.watchers, *method.watchers)
        training = Training(job, strategy, model, watchers, position.epochs, position.steps)
        if job.options.loop == "fit":
            fit(training)
        else:
            train_scheduled(training, coordinator, workers)
    method.training_ended()
    export(job, copy_to_host(job, model), progress)
    progress.phase("evaluating")
    result = evaluate(model, job.dataset, strategy, coordinator)
    print_evaluation(result)
    journal.evaluated(result)
    method.close()
    progress.phase("done", loss=result.loss, metrics={"accuracy": result.accuracy})
    exit_now(0)


def _connect(job: Job, progress: ProgressChannel) -> Any:
    """Return the strategy after every worker and parameter server is there."""
    place = job.place
    progress.phase("waiting")
    workers, servers = counted(place.workers - 1, "worker"), counted(len(place.servers), "parameter server")
    print_as_task(place, f"waiting for {workers} and {servers} to connect")
    with without_startup_messages():
        tf.config.list_physical_devices()
    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver(),
        variable_partitioner=make_partitioner(job.options.partitioner, len(place.servers)),
    )
    progress.phase("starting")
    return strategy


def _print_header(job: Job, workers: int, held: Mapping[str, int]) -> None:
    options = job.options
    weights = ", ".join(f"{numbers:,} on {task}" for task, numbers in held.items())
    print(
        f"{job.dataset.headline}\n"
        f"parameter_server, {options.loop} loop: {counted(workers, 'worker')} "
        f"at {'its' if workers == 1 else 'their'} own pace, {counted(job.global_batch, 'example')} a step, "
        f"{counted(job.steps, 'step')} an epoch, {counted(options.epochs, 'epoch')}\n"
        f"weights: {weights}\n"
        f"{describe_storage(options)}"
    )


def _check_shapes(job: Job, model: Any, position: Position) -> None:
    """Raise CheckpointError if what was restored was saved from variables that were cut differently."""
    mismatch = None if position == START else find_shape_mismatch(model)
    if mismatch is not None:
        raise CheckpointError(
            f"{job.options.checkpoint_dir / position.name} does not fit these variables ({mismatch}): give the "
            "--partitioner and the --ps it was made with, or another --checkpoint-dir"
        )
