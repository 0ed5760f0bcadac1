"""The declaration of a case: a small training that one process and several workers run alike."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

Values = dict[str, Any]
# Two and three workers share a batch evenly, except the last one of UNEVEN examples.
BATCH, EXAMPLES, UNEVEN = 12, 36, 31
FEATURES, CLASSES = 6, 3
# The seed of each case. Seeds that a case does not set follow from it.
SEED = 11


@dataclass(frozen=True)
class Place:
    """The place where a case runs. `directory` is the same for all workers."""

    strategy: Any
    directory: Path
    rank: int

    @property
    def replicas(self) -> int:
        return int(self.strategy.num_replicas_in_sync)

    def scope(self) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = self.strategy.scope()
        return scope


@dataclass(frozen=True)
class Case:
    """A case with the words of its row; without a topic it has none.

    `differs` says why its values are not those of one process; `within` is their largest relative difference then.
    """

    name: str
    topic: str
    run: Callable[[Place], Values]
    three: bool
    quick: bool
    differs: str
    within: float


CASES: dict[str, Case] = {}
Run = Callable[[Place], Values]


def topic(title: str) -> Callable[..., Any]:
    """Return the function that declares the cases of a topic; without `run` it returns a decorator."""

    def case(
        name: str,
        run: Run | None = None,
        *,
        three: bool = False,
        quick: bool = False,
        differs: str = "",
        within: float = np.inf,
    ) -> Any:
        if run is None:
            return lambda run: case(name, run, three=three, quick=quick, differs=differs, within=within)
        if name in CASES:
            raise ValueError(f"two cases are named {name}")
        CASES[name] = Case(name, title, run, three, quick, differs, within)
        return run

    return case


# -- what most cases are made of


def numbers(*shape: int, seed: int = 3) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def labels(examples: int = EXAMPLES, classes: int = CLASSES) -> Any:
    return np.random.default_rng(4).integers(0, classes, size=examples)


def data(examples: int = EXAMPLES) -> tuple[Any, Any]:
    return numbers(EXAMPLES, FEATURES)[:examples], labels()[:examples]


def mlp(outputs: int = CLASSES, activation: Any = None, **hidden: Any) -> Any:
    return sequential((FEATURES,), keras.layers.Dense(8, "tanh", **hidden), dense(outputs, activation))


def dense(outputs: int = CLASSES, activation: Any = None) -> Any:
    return keras.layers.Dense(outputs, activation, dtype="float32")


class Plain(keras.Model):
    """A model with one layer, for own steps, losses and metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.last = dense()

    def call(self, x: Any, training: bool = False) -> Any:
        return self.last(x)


def sequential(shape: tuple[int | None, ...], *layers: Any, dtype: str = "float32") -> Any:
    return keras.Sequential([keras.layers.Input(shape, dtype=dtype), *layers])


def descent() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.5)


def cross_entropy(**options: Any) -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def compiled(place: Place, make: Callable[[], Any] = mlp, optimizer: Any = descent, **options: Any) -> Any:
    """Return a compiled model. Functions among the arguments are called in the scope."""
    with place.scope():
        model = make()
        chosen: Values = {"loss": cross_entropy, "metrics": lambda: ["accuracy"], **options}
        for name in ("loss", "metrics", "weighted_metrics"):
            if name in chosen and callable(chosen[name]) and not isinstance(chosen[name], keras.losses.Loss):
                chosen[name] = chosen[name]()
        model.compile(optimizer=optimizer() if callable(optimizer) else optimizer, **chosen)
    return model


def fit(model: Any, x: Any = None, y: Any = None, **options: Any) -> Values:
    """Train, and return the history and the weights."""
    if x is None:
        x, y = data()
    common: Values = {"epochs": 2, "verbose": 0, "shuffle": False}
    if isinstance(x, np.ndarray | list | dict):
        common["batch_size"] = BATCH
    history = model.fit(x, y, **{**common, **options})
    return outcome(model) | {f"history {name}": values for name, values in history.history.items()}


def outcome(model: Any, **more: Any) -> Values:
    return {f"weight {index}": weight for index, weight in enumerate(model.get_weights())} | more


def scores(model: Any, x: Any, y: Any, **options: Any) -> Values:
    """Evaluate, with an uneven last batch."""
    some = keras.tree.map_structure(lambda part: part[:UNEVEN], (x, y))
    found = model.evaluate(*some, batch_size=BATCH, verbose=0, return_dict=True, **options)
    return {f"evaluate {name}": value for name, value in found.items()}


def predicted(model: Any, x: Any) -> Values:
    some = keras.tree.map_structure(lambda part: part[:UNEVEN], x)
    found = keras.tree.flatten(model.predict(some, batch_size=BATCH, verbose=0))
    return {f"predict {index}": values for index, values in enumerate(found)}
