"""The training program from its first line to its exit code, step by step."""

from __future__ import annotations

from typing import Any, NoReturn

import keras
import tensorflow as tf

from worker.keras_multiworker import fix_multi_worker_fit
from worker.options import Options
from worker.progress import ProgressChannel
from worker.training.checkpoints import Checkpoints, save_model
from worker.training.cluster import Place
from worker.training.datasets import Dataset
from worker.training.departure import leave
from worker.training.evaluation import evaluate
from worker.training.iterator_hold import hold_iterators
from worker.training.model import build_model, scaled_learning_rate
from worker.training.pipeline import steps_per_epoch, training_batches
from worker.training.quiet import without_chatter
from worker.training.report import EpochReport


def run(options: Options, place: Place, dataset: Dataset, progress: ProgressChannel) -> NoReturn:
    """Train, evaluate, save, and end the process with code 0; errors are raised."""
    say_fix(place)
    strategy = join_cluster(place, progress)
    global_batch = options.batch_size * place.workers
    steps = steps_per_epoch(len(dataset.train_images), global_batch, options.steps_per_epoch)
    say_header(options, place, dataset, global_batch, steps)
    model = make_model(options, place, dataset, strategy)
    checkpoints = Checkpoints(model, place, strategy, options.checkpoint_dir, options.keep)
    done = resume(checkpoints, options)
    if done < options.epochs:
        train(
            options,
            place,
            dataset,
            model,
            checkpoints,
            progress,
            done=done,
            steps=steps,
            global_batch=global_batch,
        )
    if place.is_chief:
        progress.phase("saving")
        print(f"model written to {save_model(model, options.checkpoint_dir)}")
    progress.phase("evaluating")
    result = evaluate(model, dataset, place, strategy)
    checkpoints.close()
    print(
        f"held-out accuracy {result.accuracy:.4f}, loss {result.loss:.4f}, on {result.examples} examples",
        flush=True,
    )
    progress.phase("done", loss=result.loss, metrics={"accuracy": result.accuracy})
    leave(place)


def say_fix(place: Place) -> None:
    line = fix_multi_worker_fit(place.workers)
    if line is not None and place.is_chief:
        print(line)


def join_cluster(place: Place, progress: ProgressChannel) -> Any:
    """The strategy; blocks until every worker of the cluster is there."""
    progress.phase("waiting")
    if place.workers > 1:
        print(f"{place.task} of {place.workers} workers: waiting for the others to connect", flush=True)
    with without_chatter():
        tf.config.list_physical_devices()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    progress.phase("starting")
    return strategy


def say_header(options: Options, place: Place, dataset: Dataset, global_batch: int, steps: int) -> None:
    if not place.is_chief:
        return
    height, width, channels = dataset.train_images.shape[1:]
    print(
        f"{dataset.name}: {len(dataset.train_images)} training and {len(dataset.test_images)} held-out images of "
        f"{height}x{width}x{channels}, {dataset.classes} classes\n"
        f"{place.workers} worker{'s' if place.workers > 1 else ''}, {options.batch_size} examples each, global batch "
        f"{global_batch}, {steps} steps an epoch, {options.epochs} epochs\n"
        f"checkpoints in {options.checkpoint_dir.absolute()}, the newest {options.keep} kept",
        flush=True,
    )


def make_model(options: Options, place: Place, dataset: Dataset, strategy: Any) -> Any:
    keras.utils.set_random_seed(options.seed)
    height, width, channels = dataset.train_images.shape[1:]
    with strategy.scope():
        model = build_model(
            (height, width, channels),
            dataset.classes,
            scaled_learning_rate(options.learning_rate, place.workers),
        )
    if options.summary and place.is_chief:
        model.summary()
    return model


def resume(checkpoints: Checkpoints, options: Options) -> int:
    """How many epochs an earlier run has done, its weights restored."""
    done = checkpoints.resume()
    if done >= options.epochs:
        print(f"already trained for {done} epochs: nothing to train", flush=True)
    elif done > 0:
        print(f"resumed at epoch {done + 1}", flush=True)
    return done


def order_seed(options: Options, place: Place, done: int) -> int:
    """The seed of the examples' order: another one after a resume, and for each worker when nothing is sharded."""
    return options.seed + done + (place.rank * options.epochs if options.auto_shard == "off" else 0)


def train(
    options: Options,
    place: Place,
    dataset: Dataset,
    model: Any,
    checkpoints: Checkpoints,
    progress: ProgressChannel,
    *,
    done: int,
    steps: int,
    global_batch: int,
) -> None:
    """Fit from epoch `done` on, with a checkpoint after each epoch."""
    progress.phase("training", epoch=done + 1, epochs=options.epochs, step=0, steps=steps)
    batches = training_batches(
        dataset,
        global_batch=global_batch,
        auto_shard=options.auto_shard,
        seed=order_seed(options, place, done),
    )
    report = EpochReport(progress, epochs=options.epochs, steps=steps, global_batch=global_batch)
    save = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: checkpoints.save(epoch + 1))
    hold_iterators(model)
    model.fit(
        batches,
        epochs=options.epochs,
        initial_epoch=done,
        steps_per_epoch=steps,
        shuffle=False,
        callbacks=[report, save],
        verbose=0,
    )
