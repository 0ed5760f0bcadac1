"""The methods that `--checkpoint` chooses from, and how a training resumes with them."""

from __future__ import annotations

import contextlib
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import tensorflow as tf

from worker.training.checkpoints.files import (
    CheckpointError,
    Checkpoints,
    Position,
    first_line,
    remove_unfinished,
)
from worker.training.job import Job, Watcher
from worker.training.options.context import BACKUP
from worker.training.options.fields import Options
from worker.training.process.ending import exit_on_signal_again, pass_signal_to_python
from worker.training.process.environment import UsageError
from worker.training.process.output import counted
from worker.training.process.peers import broadcast_from_chief, leave
from worker.training.process.progress import ProgressChannel

# Exit code that asks the launcher to start the program again, because its state is saved.
RESTART_CODE = 42
_BACKUP_WEIGHTS = "latest.weights.h5"


class Method:
    """A way to save a training. Every worker has one and calls each function at the same point of its program.

    `watchers` are for the loop, `callbacks` for Keras `fit`; `wrap_step`, if not None, turns the training step into
    the one that a loop calls.
    """

    watchers: tuple[Watcher, ...] = ()
    callbacks: tuple[Any, ...] = ()
    wrap_step: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None

    def resume(self) -> Position:
        """Restore the newest state of an earlier run and return its position; CheckpointError."""
        raise NotImplementedError

    def training_ended(self) -> None:
        """Handle the end of the last step."""

    def close(self) -> None:
        """Remove what only this process needs."""


def open_method(job: Job, model: Any, strategy: Any) -> Method:
    """Return the method that the job asks for."""
    if job.options.checkpoint == BACKUP:
        return BackupMethod(job, model, strategy)
    checkpoints = Checkpoints(model, job.place, strategy, job.options.checkpoint_dir, job.options.keep)
    if job.options.checkpoint == "preemption":
        return PreemptionMethod(job, strategy, checkpoints)
    return EpochMethod(checkpoints)


def describe_storage(options: Options) -> str:
    """Return a line about where the training's state is written, and how much of it is kept."""
    directory = options.checkpoint_dir.absolute()
    if options.checkpoint == BACKUP:
        return f"backups in {directory / BACKUP}, that of the last epoch kept"
    return f"checkpoints in {directory}, the newest {options.keep} kept"


def resume(job: Job, method: Method, progress: ProgressChannel) -> Position:
    """Restore the state of an earlier run, print and report where it was, and return that; UsageError."""
    position, epochs, steps = method.resume(), job.options.epochs, job.steps
    done = position.epochs
    all_done = done >= epochs
    if position.steps >= steps:
        raise UsageError(
            f"{position.name} was written {counted(position.steps, 'step')} into an epoch, which now has {steps}"
            ": give the --steps-per-epoch, --batch-size and number of workers it was made with, or another "
            "--checkpoint-dir"
        )
    if all_done:
        print(f"already trained for {counted(done, 'epoch')}: nothing to train")
    elif position.steps:
        print(f"resumed at epoch {done + 1}, after {position.steps} of its {counted(steps, 'step')}")
    elif done > 0:
        print(f"resumed at epoch {done + 1}")
    progress.phase(
        "training",
        epoch=min(done + 1, epochs),
        epochs=epochs,
        step=steps if all_done else position.steps,
        steps=steps,
        start_step=min(done, epochs) * steps + (0 if all_done else position.steps),
        global_batch=job.global_batch,
    )
    return position


class Store(Protocol):
    """Writes and reads the state after a number of epochs."""

    def resume(self) -> Position: ...

    def save(self, epochs_done: int) -> None: ...

    def close(self) -> None: ...


class EpochMethod(Method, Watcher):
    """`--checkpoint manager`: a checkpoint after each epoch."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.watchers = (self,)

    def resume(self) -> Position:
        return self._store.resume()

    def epoch_ended(self, epoch: int, values: Mapping[str, float]) -> None:
        self._store.save(epoch)

    def close(self) -> None:
        self._store.close()


class BackupMethod(Method):
    """`--checkpoint backup`: Keras's BackupAndRestore.

    `<checkpoint-dir>/backup/<task>` holds the weights, the optimizer and the number of the last epoch. All workers
    resume from the chief's. Unlike Keras's default it is kept after training, so that a later run only evaluates.
    """

    def __init__(self, job: Job, model: Any, strategy: Any) -> None:
        import keras

        from worker.bootstrap.keras_fix import repair_for_one_worker

        # With several workers this repair is one of those already made.
        repair_for_one_worker(keras)
        self._job = job
        self._model = model
        self._strategy = strategy
        place = job.place
        directory = job.options.checkpoint_dir.absolute() / BACKUP
        chief = "chief:0" if place.has_own_chief else "worker:0"
        self._chief_weights = directory / chief.replace(":", "-") / _BACKUP_WEIGHTS
        if place.is_chief:
            remove_unfinished(job.options.checkpoint_dir)
        own = directory / place.task.replace(":", "-")
        # Left by a killed process; each process uses new names.
        for unfinished in own.glob(".next.*"):
            unfinished.unlink(missing_ok=True)
        self._backup = keras.callbacks.BackupAndRestore(str(own), delete_checkpoint=False)
        self.callbacks = (self._backup,)

    def resume(self) -> Position:
        """Restore the chief's backup. `fit` does so too, but it is not called if no epoch is left."""
        from worker.bootstrap.keras_fix.backups import settled_epoch

        place = self._job.place
        found = settled_epoch(self._backup) if place.is_chief else 0
        epochs = broadcast_from_chief(self._strategy, place, found)
        if epochs:
            self._restore(self._chief_weights)
        return Position(epochs)

    def _restore(self, weights: Path) -> None:
        try:
            self._model.load_weights(weights)
        except FileNotFoundError as error:
            raise CheckpointError.missing(weights) from error
        except (OSError, ValueError) as error:
            raise CheckpointError.unfit(weights, first_line(error)) from error


class PreemptionMethod(EpochMethod):
    """`--checkpoint preemption`: tf.distribute.experimental.PreemptionCheckpointHandler, and a checkpoint per epoch.

    On SIGTERM (or the platform's notice) the handler agrees with its peers on a step and calls back. All workers save a
    checkpoint within the epoch, from which the next run finishes the epoch, and exit with code 42.
    """

    def __init__(self, job: Job, strategy: Any, checkpoints: Checkpoints) -> None:
        super().__init__(checkpoints)
        self._checkpoints = checkpoints
        self._job = job
        self._strategy = strategy
        self._first_step = self._steps = 0
        self._handles_sigterm = False
        self.wrap_step = self._wrap_step

    def resume(self) -> Position:
        position = super().resume()
        self._first_step = position.epochs * self._job.steps + position.steps
        return position

    def training_ended(self) -> None:
        """Make SIGTERM end this process immediately again."""
        if self._handles_sigterm:
            exit_on_signal_again(signal.SIGTERM)
            self._handles_sigterm = False

    def _wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        # TensorFlow's handler calls a function that TensorFlow has deprecated.
        tf.get_logger().addFilter(lambda record: "total_run_calls" not in record.getMessage())
        with _make_unused_manager() as manager:
            handler = tf.distribute.experimental.PreemptionCheckpointHandler(
                self._strategy.cluster_resolver if self._job.place.workers > 1 else None,
                manager,
                termination_config=tf.distribute.experimental.TerminationConfig(
                    exit_fn=self._leave, save_fn=self._save
                ),
            )
        if callable(signal.getsignal(signal.SIGTERM)):
            pass_signal_to_python(signal.SIGTERM)
            self._handles_sigterm = True
        elif self._job.place.is_chief:
            print("worker: TensorFlow takes its preemption notice from this platform and not from SIGTERM")

        def watched_step(*arguments: Any) -> Any:
            result = handler.run(step, *arguments)
            self._steps += 1
            return result

        return watched_step

    def _save(self) -> None:
        position = Position(*divmod(self._first_step + self._steps, self._job.steps))
        path = self._checkpoints.save_within_epoch(position)
        print(
            f"stop requested: saved at step {position.steps} of epoch {position.epochs + 1} as {path}"
            if position.steps
            else f"stop requested: epoch {position.epochs} is saved as {path}"
        )

    def _leave(self) -> None:
        self.close()
        leave(self._job.place, RESTART_CODE)


@contextlib.contextmanager
def _make_unused_manager() -> Iterator[Any]:
    """Yield a CheckpointManager without checkpoints: the handler requires one, but this program saves and restores."""
    with tempfile.TemporaryDirectory(prefix="preemption-") as empty:
        yield tf.train.CheckpointManager(tf.train.Checkpoint(), empty, max_to_keep=1)
