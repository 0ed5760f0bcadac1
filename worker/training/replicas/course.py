"""The training of a process that holds replicas of the whole model, from its strategy to its exit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

import keras

from worker.bootstrap.keras_fix import repair
from worker.training.checkpoints.methods import describe_storage, open_method, resume
from worker.training.job import Job, Training
from worker.training.network import add_loss_scale, build_model, set_precision
from worker.training.process.output import counted
from worker.training.process.peers import leave
from worker.training.process.progress import ProgressChannel
from worker.training.replicas.data_check import check_data
from worker.training.replicas.loops import LOOP_FUNCTIONS
from worker.training.replicas.strategies import Tpu, describe_strategy, make_strategy
from worker.training.results.evaluation import evaluate, print_evaluation
from worker.training.results.export import export
from worker.training.results.watchers import EpochReport, Journal, read_learning_rate


def train_replicas(job: Job, progress: ProgressChannel, tpu: Tpu | None = None) -> NoReturn:
    """Train, save, evaluate, and exit with code 0; errors are raised."""
    repaired = repair(keras, job.place.workers)
    if repaired is not None and job.place.is_chief:
        print(repaired)
    strategy = make_strategy(job, progress, tpu)
    set_precision(job.options.precision, workers=job.place.workers)
    job = replace(job, replicas=strategy.num_replicas_in_sync)
    if job.place.is_chief:
        _print_header(job, strategy)
    if job.options.check_data:
        check_data(job, strategy)
    model = _make_model(job, strategy)
    method = open_method(job, model, strategy)
    position = resume(job, method, progress)
    journal = Journal(job, position.epochs, lambda: read_learning_rate(model.optimizer))
    if position.epochs < job.options.epochs:
        watchers = (EpochReport(progress, job), *journal.watchers, *method.watchers)
        LOOP_FUNCTIONS[job.options.loop](
            Training(
                job,
                strategy,
                model,
                watchers,
                epochs_done=position.epochs,
                steps_done=position.steps,
                callbacks=method.callbacks,
                wrap_step=method.wrap_step,
            )
        )
    method.training_ended()
    export(job, model, progress)
    progress.phase("evaluating")
    result = evaluate(model, job.dataset, strategy)
    print_evaluation(result)
    journal.evaluated(result)
    method.close()
    metrics = add_loss_scale({"accuracy": result.accuracy}, model.optimizer)
    progress.phase("done", loss=result.loss, metrics=metrics)
    leave(job.place)


def _print_header(job: Job, strategy: Any) -> None:
    # Workers with several GPUs each have more than one replica.
    is_one_each = job.options.strategy == "multi_worker_mirrored" and job.place.workers == job.replicas
    count = job.replicas
    print(
        f"{job.dataset.headline}\n"
        f"{describe_strategy(job, strategy)}\n"
        f"{counted(count, 'worker' if is_one_each else 'replica')}, {_share(job.global_batch, count)} each, "
        f"{job.describe_sizes()}\n"
        f"{describe_storage(job.options)}"
    )


def _share(examples: int, count: int) -> str:
    """Return `16 examples`, or `16 or 17 examples` if the shares differ."""
    least, over = divmod(examples, count)
    return f"{least} or {counted(least + 1, 'example')}" if over else counted(least, "example")


def _make_model(job: Job, strategy: Any) -> Any:
    keras.utils.set_random_seed(job.options.seed)
    with strategy.scope():
        model = build_model(
            job.dataset.image_shape,
            job.dataset.classes,
            job.learning_rate,
            job.options.width,
            job.options.precision,
        )
    if job.options.summary and job.place.is_chief:
        model.summary()
    return model
