"""The input of the loops: the training examples as a tf.data or distributed data set, and its iterators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from worker.training.data.pipeline import (
    BatchOrder,
    example_maker,
    keyed_batches,
    set_batch_size,
    split_for_pipeline,
    take_numbers,
    with_sharding,
)
from worker.training.job import Job
from worker.training.options.checks import batch_problem
from worker.training.process.environment import UsageError

MakeElement = Callable[..., Any]
_kept_iterators: list[Any] = []


def batches_for_fit(job: Job, strategy: Any, first_step: int) -> Any:
    """Return the input of `model.fit` from `first_step` on: endless global batches, or a distributed data set."""
    _check_batch(job)
    if _uses_function(job):
        return distributed_batches(job, strategy, first_step)
    return _global_batches(job, first_step, example_maker(job.dataset))


def distributed_batches(job: Job, strategy: Any, first_step: int) -> Any:
    """Return the same as a tf.distribute.DistributedDataset: each element has a part for each replica."""
    return _distribute(job, strategy, first_step, None, example_maker(job.dataset))


def distributed_numbers(job: Job, strategy: Any) -> Any:
    """Return one pass, distributed in the same way, of the examples' numbers: int64 (n,) per replica."""
    return _distribute(job, strategy, 0, 1, take_numbers)


def keep_iterator(iterator: Any) -> Any:
    """Return the iterator, which now lives until the process exits, because destroying it may take seconds.

    worker/bootstrap/keras_fix/iterators.py says why. The data sets that feed the devices do not take the user's
    tf.data options, so the tuning that is waited for cannot be turned off.
    """
    _kept_iterators.append(iterator)
    return iterator


def keep_fit_iterators(model: Any) -> None:
    """Make the iterators that `model.fit` creates live until the process exits by `os._exit`."""
    model.make_train_function()
    step = model.train_function

    def step_and_keep(iterator: Any) -> Any:
        if not any(iterator is other for other in _kept_iterators):
            keep_iterator(iterator)
        return step(iterator)

    model.train_function = step_and_keep


def _distribute(job: Job, strategy: Any, first_step: int, passes: int | None, make: MakeElement) -> Any:
    _check_batch(job)
    if not _uses_function(job):
        return strategy.experimental_distribute_dataset(_global_batches(job, first_step, make, passes))

    def batches_of(context: Any) -> Any:
        return _pipeline_batches(job, context, first_step, make, passes)

    return strategy.distribute_datasets_from_function(batches_of)


def _global_batches(job: Job, first_step: int, make: MakeElement, passes: int | None = None) -> Any:
    order = BatchOrder(
        job.global_batch,
        job.options.seed,
        job.stream,
        first_step,
        # From its own stream each worker takes its share of a global batch per step.
        per_step=job.global_batch // (job.place.workers if job.own_streams else 1),
        passes=passes,
    )
    return with_sharding(keyed_batches(job.dataset, order).map(make), job.auto_shard)


def _pipeline_batches(job: Job, context: Any, first_step: int, make: MakeElement, passes: int | None) -> Any:
    """Return batches for one replica each, of the examples that this input pipeline feeds."""
    pipeline, pipelines = context.input_pipeline_id, context.num_input_pipelines
    replicas = context.num_replicas_in_sync
    if job.own_streams:
        each = context.get_per_replica_batch_size(job.global_batch)
        order = BatchOrder(
            each,
            job.options.seed,
            job.stream,
            first_step,
            per_step=each * (replicas // pipelines),
            passes=passes,
        )
        files = slice(pipeline, None, pipelines) if job.by_file else slice(None)
        return keyed_batches(job.dataset, order, files).map(make)
    order = BatchOrder(
        job.global_batch,
        job.options.seed,
        first_step=first_step,
        short_last=job.short_last,
        passes=passes,
    )
    keys = keyed_batches(job.dataset, order)
    own = split_for_pipeline(keys, pipeline=pipeline, pipelines=pipelines, replicas=replicas)
    if passes is None and not job.short_last:
        own = own.map(set_batch_size(context.get_per_replica_batch_size(job.global_batch)))
    return own.map(make)


def _uses_function(job: Job) -> bool:
    # TensorFlow would cut a smaller batch into pieces of the usual size, and some replicas would have none.
    return job.options.input == "function" or job.short_last


def _check_batch(job: Job) -> None:
    """Raise UsageError if the replicas cannot share a batch; the result is the same on every worker."""
    problem = batch_problem(
        job.options,
        job.replicas,
        job.place.workers,
        global_batch=job.global_batch,
        own_streams=job.own_streams,
    )
    if problem is None and job.short_last:
        left = job.dataset.examples % job.global_batch
        if 0 < left < job.replicas:
            problem = (
                f"--last-batch short: the last batch of {left} has no example for some of {job.replicas} replicas: "
                "take another --batch-size, or --last-batch full"
            )
    if problem is not None:
        raise UsageError(problem)
