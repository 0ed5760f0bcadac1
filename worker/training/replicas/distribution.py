"""The input of the loops, a tf.data or distributed data set, and --check-data, which counts what it feeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

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
from worker.training.process.output import counted, print_as_task
from worker.training.process.peers import sum_over_workers

# Numbers per sum over the workers. Each size is compiled separately.
_CHUNK = 1_000_000
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


def check_data(job: Job, strategy: Any) -> None:
    """Print how many distinct examples this worker saw, and on the chief whether the workers saw each once.

    Every worker must call it. A wrong count is not an error, because it may be intended.
    """
    seen = np.zeros(job.dataset.examples, np.float64)
    for step in distributed_numbers(job, strategy):
        for numbers in strategy.experimental_local_results(step):
            np.add.at(seen, numbers.numpy(), 1)
    distinct = int(np.count_nonzero(seen))
    print_as_task(job.place, f"saw {counted(distinct, 'distinct example')} of {len(seen)}")
    together = np.concatenate(
        [
            sum_over_workers(strategy, job.place, list(seen[start : start + _CHUNK]))
            for start in range(0, len(seen), _CHUNK)
        ]
    )
    if job.place.is_chief:
        print(describe_coverage(together.astype(np.int64), job.place.workers, off=job.auto_shard == "off"))


def describe_coverage(times: npt.NDArray[np.int64], workers: int, *, off: bool) -> str:
    """Return one line about how often all workers together saw each example; `off`: --auto-shard off."""
    examples, distinct = len(times), int(np.count_nonzero(times))
    start = f"together the workers saw {counted(distinct, 'distinct example')} of {examples}"
    if distinct == examples and (times == 1).all():
        return f"{start}: each exactly once"
    if off and workers > 1 and (times == workers).all():
        return f"{start}: each {workers} times, once by each worker, as expected of --auto-shard off"
    found = [
        f"{count} {what}"
        for count, what in ((examples - distinct, "never"), (int((times > 1).sum()), "more than once"))
        if count
    ]
    return f"{start}: NOT each once, {' and '.join(found)}"
