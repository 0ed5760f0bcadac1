"""Trainings that are impossible with several workers. All of them must refuse with a message."""

from __future__ import annotations

from case_program import Place
from training_cases import BATCH, Values, compiled, data, fit


def xla(place: Place) -> Values:
    return refusal(lambda: fit(place, compiled(place, jit_compile=True)))


def epochs_of_different_lengths(place: Place) -> Values:
    model = compiled(place)
    x, y = data(BATCH * (2 + place.rank))
    values = refusal(lambda: model.fit(x, y, batch_size=BATCH, verbose=0))
    # All workers have that many batches.
    history = model.fit(x, y, batch_size=BATCH, steps_per_epoch=2, verbose=0)
    return values | {"loss": history.history["loss"]}


def refusal(action: object) -> Values:
    assert callable(action)
    try:
        action()
    except ValueError as error:
        return {"refused": str(error)}
    return {"refused": ""}
