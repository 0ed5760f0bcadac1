"""The training program from its first line to its exit code, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import keras
import tensorflow as tf

from worker.bootstrap.keras_fix import repair
from worker.options import Options
from worker.progress import ProgressChannel
from worker.training.checkpoints import Checkpoints, save_model
from worker.training.cluster import Place
from worker.training.datasets import Dataset
from worker.training.departure import leave
from worker.training.evaluation import Evaluation, evaluate
from worker.training.iterator_hold import hold_iterators
from worker.training.model import build_model, scaled_learning_rate
from worker.training.pipeline import steps_per_epoch, training_batches
from worker.training.quiet import without_chatter
from worker.training.report import EpochReport


@dataclass(frozen=True)
class Job:
    """What is to be trained, and as which of the workers."""

    options: Options
    place: Place
    dataset: Dataset

    @property
    def global_batch(self) -> int:
        return self.options.batch_size * self.place.workers

    @property
    def steps(self) -> int:
        """Steps an epoch."""
        return steps_per_epoch(
            len(self.dataset.train_images), self.global_batch, self.options.steps_per_epoch
        )

    def order_seed(self, done: int) -> int:
        """The seed of the examples' order: its own after a resume, and on each worker without sharding."""
        apart = self.place.rank * self.options.epochs if self.options.auto_shard == "off" else 0
        return self.options.seed + done + apart


def run(job: Job, progress: ProgressChannel) -> NoReturn:
    """Train, save, evaluate, and end the process with code 0; errors are raised."""
    say_fix(job.place)
    strategy = join_cluster(job.place, progress)
    say_header(job)
    model = make_model(job, strategy)
    checkpoints = Checkpoints(model, job.place, strategy, job.options.checkpoint_dir, job.options.keep)
    done = resume(checkpoints, job.options.epochs)
    if done < job.options.epochs:
        train(job, model, checkpoints, done, progress)
    save(job, model, progress)
    result = evaluate_held_out(job, model, strategy, progress)
    checkpoints.close()
    progress.phase("done", loss=result.loss, metrics={"accuracy": result.accuracy})
    leave(job.place)


def say_fix(place: Place) -> None:
    line = repair(keras, place.workers)
    if line is not None and place.is_chief:
        print(f"worker: {line}")


def join_cluster(place: Place, progress: ProgressChannel) -> Any:
    """The strategy; blocks until every worker of the cluster is there."""
    progress.phase("waiting")
    if place.workers > 1:
        print(f"{place.task} of {place.workers} workers: waiting for the others to connect")
    with without_chatter():
        tf.config.list_physical_devices()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    progress.phase("starting")
    return strategy


def say_header(job: Job) -> None:
    if not job.place.is_chief:
        return
    dataset, options, workers = job.dataset, job.options, job.place.workers
    size = "x".join(str(side) for side in dataset.train_images.shape[1:])
    print(
        f"{dataset.name}: {len(dataset.train_images)} training and {len(dataset.test_images)} held-out "
        f"images of {size}, {dataset.classes} classes\n"
        f"{workers} worker{'s' if workers > 1 else ''}, {options.batch_size} examples each, "
        f"global batch {job.global_batch}, {job.steps} steps an epoch, {options.epochs} epochs\n"
        f"checkpoints in {options.checkpoint_dir.absolute()}, the newest {options.keep} kept"
    )


def make_model(job: Job, strategy: Any) -> Any:
    keras.utils.set_random_seed(job.options.seed)
    height, width, channels = job.dataset.train_images.shape[1:]
    rate = scaled_learning_rate(job.options.learning_rate, job.place.workers)
    with strategy.scope():
        model = build_model((height, width, channels), job.dataset.classes, rate)
    if job.options.summary and job.place.is_chief:
        model.summary()
    return model


def resume(checkpoints: Checkpoints, epochs: int) -> int:
    """How many epochs an earlier run has done, its weights restored."""
    done = checkpoints.resume()
    if done >= epochs:
        print(f"already trained for {done} epochs: nothing to train")
    elif done > 0:
        print(f"resumed at epoch {done + 1}")
    return done


def train(job: Job, model: Any, checkpoints: Checkpoints, done: int, progress: ProgressChannel) -> None:
    """Fit from epoch `done` on, with a checkpoint after each epoch."""
    epochs, steps = job.options.epochs, job.steps
    progress.phase("training", epoch=done + 1, epochs=epochs, step=0, steps=steps)
    batches = training_batches(
        job.dataset,
        global_batch=job.global_batch,
        auto_shard=job.options.auto_shard,
        seed=job.order_seed(done),
    )
    report = EpochReport(progress, epochs=epochs, steps=steps, global_batch=job.global_batch)
    keep = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: checkpoints.save(epoch + 1))
    hold_iterators(model)
    model.fit(
        batches,
        epochs=epochs,
        initial_epoch=done,
        steps_per_epoch=steps,
        shuffle=False,
        callbacks=[report, keep],
        verbose=0,
    )


def save(job: Job, model: Any, progress: ProgressChannel) -> None:
    if job.place.is_chief:
        progress.phase("saving")
        print(f"model written to {save_model(model, job.options.checkpoint_dir)}")


def evaluate_held_out(job: Job, model: Any, strategy: Any, progress: ProgressChannel) -> Evaluation:
    progress.phase("evaluating")
    result = evaluate(model, job.dataset, job.place, strategy)
    print(f"held-out accuracy {result.accuracy:.4f}, loss {result.loss:.4f}, on {result.examples} examples")
    return result
