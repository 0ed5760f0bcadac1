"""What a worker says while it trains: one line an epoch, and progress for whoever watches."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import keras

from worker.progress import ProgressChannel


class EpochReport(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Prints `epoch 3/10: loss 0.1234, accuracy 0.9671, 12.3 steps/s` and sends each step's progress."""

    def __init__(self, progress: ProgressChannel, *, epochs: int, steps: int, global_batch: int) -> None:
        super().__init__()
        self._progress = progress
        self._epochs = epochs
        self._steps = steps
        self._global_batch = global_batch
        self._epoch = 0
        self._epoch_start = self._first_step_end = 0.0

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        self._epoch = epoch + 1
        self._epoch_start = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        # The values are at hand: Keras has already read them for its callbacks.
        if batch == 0:
            self._first_step_end = time.monotonic()
        self._progress.step(lambda: self._facts(batch + 1, logs or {}))

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        facts = self._facts(self._steps, logs or {})
        self._progress.phase("training", **facts)
        # Keras orders them by name; the loss belongs first.
        named = sorted((logs or {}).items(), key=lambda item: item[0] != "loss")
        values = ", ".join(f"{name} {value:.4f}" for name, value in named)
        print(f"epoch {self._epoch}/{self._epochs}: {values}, {facts['steps_per_s']:.1f} steps/s", flush=True)

    def _facts(self, step: int, logs: Mapping[str, float]) -> dict[str, Any]:
        rate = self._rate(step)
        return {
            "epoch": self._epoch,
            "epochs": self._epochs,
            "step": step,
            "steps": self._steps,
            "loss": logs.get("loss"),
            "metrics": {name: value for name, value in logs.items() if name != "loss"},
            "steps_per_s": rate,
            "examples_per_s": rate * self._global_batch,
        }

    def _rate(self, step: int) -> float:
        """Steps a second, without the first of an epoch where there are more: the very first one compiles."""
        if step < 2:
            return step / (time.monotonic() - self._epoch_start)
        return (step - 1) / (time.monotonic() - self._first_step_end)
