"""Keeping the iterators of fit: each is kept once, outlives fit, and is still passed to the step."""

from __future__ import annotations

import gc
import weakref


class Iterator:
    """A fake tf.data iterator."""


class Model:
    """A fake Keras model: creates its train function on demand, and calls it with an iterator in each step."""

    def __init__(self) -> None:
        self.seen: list[weakref.ref[Iterator]] = []
        self.train_function = None

    def make_train_function(self) -> None:
        def step(iterator: Iterator) -> str:
            self.seen.append(weakref.ref(iterator))
            return "logs"

        self.train_function = step  # type: ignore[assignment]

    def fit(self, steps: int) -> None:
        iterator = Iterator()
        for _ in range(steps):
            assert self.train_function is not None
            assert self.train_function(iterator) == "logs"


def is_alive(model: Model) -> bool:
    gc.collect()
    return model.seen[-1]() is not None


def test_iterator_outlives_fit_only_if_kept() -> None:
    from worker.training.replicas import distribution

    plain, held = Model(), Model()
    plain.make_train_function()
    plain.fit(3)
    assert not is_alive(plain)
    before = len(distribution._kept_iterators)
    distribution.keep_fit_iterators(held)
    held.fit(3)
    held.fit(2)
    assert is_alive(held)
    assert len(distribution._kept_iterators) == before + 2
    assert len(held.seen) == 5
