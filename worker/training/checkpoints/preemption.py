"""`--checkpoint preemption`: who is told to end has all workers save at one step, and all leave with code 42."""

from __future__ import annotations

import contextlib
import signal
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from worker.training.checkpoints.by_epoch import SavedByEpoch
from worker.training.checkpoints.files import Checkpoints, Position
from worker.training.departure import leave
from worker.training.job import Job
from worker.training.signals import end_on_signal_again, hand_over_signal

# "Saved; start me again": what orch and others take it for.
START_ME_AGAIN = 42


class SavedWhenPreempted(SavedByEpoch):
    """tf.distribute.experimental.PreemptionCheckpointHandler at SIGTERM (or the platform's own notice), and a
    checkpoint after each epoch for what comes without one.

    The handler agrees with its peers on a step, and calls back; what is written there is a checkpoint within an
    epoch, from which the next run does the rest of that epoch.
    """

    def __init__(self, job: Job, strategy: Any, checkpoints: Checkpoints) -> None:
        super().__init__(checkpoints)
        self._within_epochs = checkpoints
        self._job = job
        self._strategy = strategy
        self._first_step = self._steps = 0
        self._resigned = False
        self.around_step = self._watched

    def resume(self) -> Position:
        position = super().resume()
        self._first_step = position.epochs * self._job.steps + position.steps
        return position

    def training_ended(self) -> None:
        """From here on SIGTERM ends this process at once again."""
        if self._resigned:
            end_on_signal_again(signal.SIGTERM)
            self._resigned = False

    def _watched(self, step: Callable[..., Any]) -> Callable[..., Any]:
        # Its own call of a function that it calls deprecated.
        tf.get_logger().addFilter(lambda record: "total_run_calls" not in record.getMessage())
        with _unused_manager() as manager:
            handler = tf.distribute.experimental.PreemptionCheckpointHandler(
                self._strategy.cluster_resolver if self._job.place.workers > 1 else None,
                manager,
                termination_config=tf.distribute.experimental.TerminationConfig(
                    exit_fn=self._leave, save_fn=self._save
                ),
            )
        if callable(signal.getsignal(signal.SIGTERM)):
            hand_over_signal(signal.SIGTERM)
            self._resigned = True
        elif self._job.place.is_chief:
            print("worker: TensorFlow takes its preemption notice from this platform and not from SIGTERM")

        def watched_step(*arguments: Any) -> Any:
            result = handler.run(step, *arguments)
            self._steps += 1
            return result

        return watched_step

    def _position(self) -> Position:
        return Position(*divmod(self._first_step + self._steps, self._job.steps))

    def _save(self) -> None:
        position = self._position()
        path = self._within_epochs.save_within_epoch(position)
        print(
            f"told to end: saved at step {position.steps} of epoch {position.epochs + 1} as {path}"
            if position.steps
            else f"told to end: epoch {position.epochs} is saved as {path}"
        )

    def _leave(self) -> None:
        self.close()
        leave(self._job.place, START_ME_AGAIN)


@contextlib.contextmanager
def _unused_manager() -> Iterator[Any]:
    """A CheckpointManager that finds nothing to restore and is given nothing to save, which are ours to do; the
    handler wants one."""
    with tempfile.TemporaryDirectory(prefix="preemption-") as nowhere:
        yield tf.train.CheckpointManager(tf.train.Checkpoint(), nowhere, max_to_keep=1)
