"""What the chief keeps of a training for people: the history and, if asked for, TensorBoard's files."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from worker.training.evaluation import Evaluation
from worker.training.event_files import EventFiles
from worker.training.history import History
from worker.training.job import Job
from worker.training.report import Watcher


class Journal:
    """`watchers` are for the loop, `evaluated` for the end; on others than the chief there is nothing to either.

    `done` epochs an earlier run has done; `more` gives figures for TensorBoard besides the loop's. Put its watchers
    before those that write checkpoints: what is not in a checkpoint is dropped from the history by the next run, and
    what is in one must be in the history.
    """

    def __init__(self, job: Job, done: int, more: Callable[[], Mapping[str, float]]) -> None:
        options = job.options
        self._kept: list[History | EventFiles] = []
        if job.place.is_chief:
            self._kept.append(History(job, done))
            if options.tensorboard is not None:
                self._kept.append(EventFiles(job, options.tensorboard, more))
        self.watchers: tuple[Watcher, ...] = tuple(self._kept)

    def evaluated(self, result: Evaluation) -> None:
        for one in self._kept:
            one.evaluated(result)
