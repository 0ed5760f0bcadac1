"""Keeps the data iterator of a training alive after it, as destroying it waits for seconds.

The destructor of a tf.data iterator cancels the thread that tunes it and joins it. TensorFlow (2.21 and
before) wakes that thread by a cancellation callback, but marks the cancellation as done only after its
callbacks: a thread that looks in between goes back to sleep for the rest of its tuning period, which doubles
from 10 ms up to 60 s as training goes on. The iterators in question are made inside `fit`, and those that
feed the devices take no tf.data options of the user's.
"""

from __future__ import annotations

from typing import Any

_held: list[Any] = []


def hold(iterator: Any) -> Any:
    """The iterator, which lives as long as the process from now on."""
    _held.append(iterator)
    return iterator


def hold_iterators(model: Any) -> None:
    """Let the iterators that `model.fit` trains from live as long as the process; end it by `os._exit`."""
    model.make_train_function()
    step = model.train_function

    def step_and_hold(iterator: Any) -> Any:
        if not any(iterator is other for other in _held):
            hold(iterator)
        return step(iterator)

    model.train_function = step_and_hold
