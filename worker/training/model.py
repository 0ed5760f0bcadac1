"""The network: a small convolutional classifier for images of any size from 4x4 up."""

from __future__ import annotations

import math
from typing import Any

from worker.training.weight_table import FILTERS, KERNEL, POOL, units
from worker.training.which_keras import load_keras

keras = load_keras()


def build_network(image_shape: tuple[int, int, int], classes: int, width: int = 1) -> Any:
    """The layers alone, from images (n, *image_shape) to logits (n, classes); `weight_table` tells their weights."""
    return keras.Sequential(
        [
            keras.layers.Input(image_shape),
            keras.layers.Conv2D(FILTERS[0], KERNEL, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(POOL),
            keras.layers.Conv2D(FILTERS[1], KERNEL, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(POOL),
            keras.layers.Flatten(),
            keras.layers.Dense(units(width), activation="relu"),
            # In float32 whatever the others compute in: a softmax of float16 loses the small probabilities.
            keras.layers.Dense(classes, dtype="float32"),
        ],
        name="digits_cnn",
    )


def build_model(
    image_shape: tuple[int, int, int],
    classes: int,
    learning_rate: float,
    width: int = 1,
    precision: str = "float32",
) -> Any:
    """A compiled model from images (n, *image_shape) to logits (n, classes), for the strategy's scope.

    With mixed_float16, which `precision.set_precision` has to have set, its optimizer scales the loss."""
    model = build_network(image_shape, classes, width)
    optimizer = keras.optimizers.Adam(learning_rate)
    if precision == "mixed_float16":
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    # Its slots must exist before a checkpoint is restored into them.
    optimizer.build(model.trainable_variables)
    return model


def scaled_learning_rate(learning_rate: float, growth: float) -> float:
    """Grows with the square root of the global batch (`growth` times one replica's), which suits Adam: fewer, larger
    steps reach as far."""
    return learning_rate * math.sqrt(growth)
