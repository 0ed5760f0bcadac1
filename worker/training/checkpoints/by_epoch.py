"""`--checkpoint manager`: a checkpoint after each epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from worker.training.checkpoints.files import Position
from worker.training.report import Watcher


class Store(Protocol):
    """Where the state after so many epochs goes, and comes from."""

    def resume(self) -> Position: ...

    def save(self, epochs_done: int) -> None: ...

    def close(self) -> None: ...


class SavedByEpoch:
    """A checkpoint after each epoch."""

    callbacks: tuple[Any, ...] = ()
    around_step: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None

    def __init__(self, checkpoints: Store) -> None:
        self._checkpoints = checkpoints
        self.watchers: tuple[Watcher, ...] = (_SavingEpochs(checkpoints),)

    def resume(self) -> Position:
        return self._checkpoints.resume()

    def training_ended(self) -> None:
        pass

    def close(self) -> None:
        self._checkpoints.close()


class _SavingEpochs:
    """A watcher that writes a checkpoint after each epoch."""

    def __init__(self, checkpoints: Store) -> None:
        self._checkpoints = checkpoints

    def epoch_began(self, epoch: int) -> None:
        pass

    def step_ended(self, step: int, values: Callable[[], Mapping[str, float]]) -> None:
        pass

    def epoch_ended(self, epoch: int, values: Mapping[str, float]) -> None:
        self._checkpoints.save(epoch)
