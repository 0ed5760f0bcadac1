"""The epochs of a training on a mesh: batches in, words to the watchers out."""

from __future__ import annotations

import numpy as np

from worker.training.evaluation import BATCH, Evaluation
from worker.training.job import Job
from worker.training.mesh.steps import Steps
from worker.training.pipeline import training_batches
from worker.training.report import Watcher


def train(job: Job, steps: Steps, watchers: tuple[Watcher, ...], done: int) -> None:
    """Train from epoch `done` on; every process takes the same batches, in the order that all strategies have."""
    batches = iter(
        training_batches(
            job.dataset,
            global_batch=job.global_batch,
            auto_shard="off",
            seed=job.options.seed,
            first_step=done * job.steps,
        )
    )
    for epoch in range(done + 1, job.options.epochs + 1):
        for watcher in watchers:
            watcher.epoch_began(epoch)
        steps.forget()
        for step in range(1, job.steps + 1):
            images, labels = next(batches)
            steps.train(images.numpy(), labels.numpy())
            for watcher in watchers:
                watcher.step_ended(step, steps.values)
        values = steps.values()
        for watcher in watchers:
            watcher.epoch_ended(epoch, values)


def evaluate(job: Job, steps: Steps, parts: int) -> Evaluation:
    """Loss and accuracy on the held-out part, each example once: the last batch is filled up with ones not counted."""
    images, labels = job.dataset.test_images, job.dataset.test_labels
    size = -(-min(BATCH, len(images)) // parts) * parts
    loss = hits = 0.0
    for start in range(0, len(images), size):
        chosen = np.arange(start, start + size)
        counted = (chosen < len(images)).astype(np.float32)
        chosen = np.minimum(chosen, len(images) - 1)
        one_loss, one_hits = steps.test(images[chosen], labels[chosen], counted)
        loss += one_loss
        hits += one_hits
    return Evaluation(loss / len(images), hits / len(images), len(images))
