"""The examples on the workers: each holds them all, and the chief says by their numbers which a step takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from worker.training.job import Job
from worker.training.pipeline import Course, keyed_batches


def on_each_worker(coordinator: Any, images: Any, labels: Any) -> Any:
    """An iterator for each worker that gives all of `images` and `labels` (one tensor each, not copied) at each step;
    a worker that comes back gets another."""
    images, labels = tf.constant(images), tf.constant(labels)
    everything = coordinator.create_per_worker_dataset(
        lambda: tf.data.Dataset.from_tensors((images, labels)).repeat()
    )
    return iter(everything)


def chosen_examples(job: Job, first_step: int) -> Iterator[Any]:
    """Endlessly the numbers of each step's examples, int64 (batch,), from `first_step` on: the batches are those of the
    other strategies."""
    course = Course(job.global_batch, job.options.seed, first_step=first_step, short_last=job.short_last)
    return (keys[0] for keys in keyed_batches(job.dataset, course))
